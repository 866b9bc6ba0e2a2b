"""A drawing as part of a page: several on one page must not share names, and none may bring its own metadata."""

from __future__ import annotations

import re
from xml.etree import ElementTree

_REFERENCE = re.compile(r"url\((['\"]?)#")
_LENGTH = re.compile(r"([\d.]+)(pt|px)?")
_PIXELS_PER_POINT = 96 / 72
_LARGEST_SCALE = 1.3  # beyond this, the type of a drawing looks shouted beside the text


def inline_svg(svg: str, name: str, alt: str) -> str:
    """The SVG for use inside HTML, every id in it beginning with `name`; as wide as its place, within reason."""
    root = ElementTree.fromstring(svg)
    width = _pixels(root.attrib.pop("width"))
    root.attrib.pop("height", None)
    for metadata in root.findall("{*}metadata"):
        root.remove(metadata)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): _renamed(_local(key), value, name) for key, value in element.attrib.items()}
        if element.tag == "style" and element.text:
            # Matplotlib styles `*`, which inside a page would mean every other drawing too.
            element.text = element.text.replace("*{", f"#{name} *{{")
    root.attrib |= {
        "id": name,
        "role": "img",
        "aria-label": alt,
        "style": f"max-width: {_LARGEST_SCALE * width:.0f}px",
    }
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def _local(qualified: str) -> str:
    """HTML gives SVG its namespaces by itself, and a plain `href` serves for `xlink:href`."""
    return qualified.rpartition("}")[2]


def _renamed(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return _REFERENCE.sub(rf"url(\1#{name}-", value)


def _pixels(length: str) -> float:
    match = _LENGTH.fullmatch(length)
    if match is None:
        raise ValueError(f"an SVG's width is a number of pt or px, not {length!r}")
    return float(match[1]) * (_PIXELS_PER_POINT if match[2] == "pt" else 1)
