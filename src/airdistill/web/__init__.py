"""The web page: plan scenarios, watch runs and compare them. It shows what the other packages compute."""
