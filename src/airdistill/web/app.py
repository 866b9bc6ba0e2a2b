"""What Streamlit runs, from the top at every touch of the page."""

from airdistill.web.pages import show

show()
