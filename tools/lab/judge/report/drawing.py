# SPDX-License-Identifier: GPL-2.0
"""Pictures of a report, as inline SVG: trees of devices, bars, lines.

Colours are classes of the style sheet. Each picture has a title, and the meaning of each colour is
also given by words or by a shape.
"""

import math
from html import escape

from judge.report import devices

# Sizes of the boxes of a tree, in pixels.
WIDTH, HEIGHT, ACROSS, DOWN, EDGE = 112, 38, 12, 26, 8
# Sizes of a chart.
CHART_WIDTH, CHART_HEIGHT, LEFT, BOTTOM, RIGHT, ABOVE = 420, 250, 48, 34, 110, 12
# The largest ratio that a bar can show.
MOST = 2


def svg(width, height, title, body, description=""):
    """A picture with a title for screen readers."""
    more = f"<desc>{escape(description)}</desc>" if description else ""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img">'
            f"<title>{escape(title)}</title>{more}{body}</svg>")


def text(x, y, words, kind="", anchor="middle"):
    """A line of text."""
    return (f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
            f"{escape(words)}</text>")


def placed(root):
    """{name of a device: (x, y) of the middle of its box}, and the size of the whole drawing."""
    places, column = {}, 0

    def place(device, level):
        nonlocal column
        if device.below:
            for child in device.below:
                place(child, level + 1)
            x = sum(places[child.name][0] for child in device.below) / len(device.below)
        else:
            x = EDGE + WIDTH / 2 + column * (WIDTH + ACROSS)
            column += 1
        places[device.name] = (x, EDGE + HEIGHT / 2 + level * (HEIGHT + DOWN))

    place(root, 0)
    return places, (2 * EDGE + column * (WIDTH + ACROSS) - ACROSS,
                    max(y for _, y in places.values()) + HEIGHT / 2 + EDGE)


def box(x, y, device, kind):
    """The box of a device."""
    lines = [line for line in (device.label, device.detail) if line]
    wide = WIDTH + (24 if device.name == "host-bridge" else 0)
    begin = y + 4 - 7 * (len(lines) - 1)
    return (f'<rect x="{x - wide / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{wide}" '
            f'height="{HEIGHT}" rx="6" class="{kind}"/>'
            + "".join(text(x, begin + 14 * n, line, "small" if n else "")
                      for n, line in enumerate(lines)))


def topology(machine, title):
    """A machine as a tree, with the path of the bytes."""
    root = devices.tree(machine)
    way = devices.way(machine, root)
    places, (width, height) = placed(root)
    kind = "open" if way.open else "shut"
    edges, lit, boxes = [], [], []
    steps = {frozenset(pair) for pair in zip(way.names, way.names[1:])}
    for device, above in root.walk():
        x, y = places[device.name]
        on_way = device.name in way.names
        boxes.append(box(x, y, device, f"box {kind}" if on_way else "box"))
        if above:
            up, top = places[above.name]
            bend = (y - HEIGHT / 2 + top + HEIGHT / 2) / 2
            line = (f'<path d="M{x:.1f} {y - HEIGHT / 2:.1f}V{bend:.1f}H{up:.1f}'
                    f'V{top + HEIGHT / 2:.1f}" class="')
            edges.append(line + 'edge"/>')
            if frozenset((device.name, above.name)) in steps:
                lit.append(line + f'way {kind}"/>')
    marks = []
    for name in (way.names[0], way.names[-1]):
        x, y = places[name]
        y -= HEIGHT / 2
        marks.append(f'<path d="M{x - 6:.1f} {y - 8:.1f}L{x:.1f} {y:.1f}L{x + 6:.1f} {y - 8:.1f}" '
                     f'class="way {kind}"/>' if way.open else "")
    if not way.open:
        x, y = places[way.apex]
        y += HEIGHT / 2 + DOWN / 2 - 1
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="10" class="stop"/>'
                     f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" class="stop"/>')
    return svg(width, height, title, "".join([*edges, *lit, *boxes, *marks]),
               described(root, way))


def described(root, way):
    """A path in words."""
    labels = {device.name: device.label for device, _ in root.walk()}
    words = ", ".join(labels[name] for name in way.names)
    if way.open:
        return f"The bytes go by: {words}. They turn at: {labels[way.apex]}."
    return f"The bytes would go by: {words}. PCI does not permit it, so none go."


def bar(ratio, limit, kind):
    """A ratio as a bar from 1.0 on, and the limit as a mark. A bar that is too long has a tip."""
    def at(value):
        return 100 * min(value, MOST) / MOST

    one, end, mark = at(1), at(ratio), ""
    if ratio > MOST:
        end = 95
        mark = f'<path d="M{end} 2V14L100 8Z" class="{kind}"/>'
    if limit is not None and limit <= MOST:
        mark += (f'<path d="M{at(limit):.2f} 0V16" class="limit" '
                 'vector-effect="non-scaling-stroke"/>')
    return ('<svg class="bar" viewBox="0 0 100 16" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect x="{min(one, end):.2f}" y="4" width="{max(abs(end - one), 0.6):.2f}" height="8" '
            f'class="{kind}"/>{mark}'
            f'<path d="M{one:.2f} 0V16" class="one" vector-effect="non-scaling-stroke"/></svg>')


def share(part):
    """A part of a whole as a bar."""
    return ('<svg class="bar" viewBox="0 0 100 16" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect x="0" y="4" width="{100 * part:.2f}" height="8" class="plain"/></svg>')


def lines(title, series):
    """Curves over a number of blocks, both axes logarithmic.

    series has (name, class of the style sheet, [(x, y)]).
    """
    xs = [x for _, _, points in series for x, _ in points]
    ys = [y for _, _, points in series for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def across(x):
        return LEFT + (CHART_WIDTH - LEFT - RIGHT) * math.log(x / min(xs)) / math.log(
            max(xs) / min(xs))

    def down(y):
        return ABOVE + (CHART_HEIGHT - ABOVE - BOTTOM) * (high - math.log10(y)) / (high - low)

    body = []
    for power in range(low, high + 1):
        y = down(10 ** power)
        body.append(f'<path d="M{LEFT} {y:.1f}H{CHART_WIDTH - RIGHT}" class="grid"/>'
                    + text(LEFT - 6, y + 4, short(10 ** power), "small", "end"))
    for x in sorted(set(xs)):
        body.append(text(across(x), CHART_HEIGHT - BOTTOM + 16, short(x), "small"))
    body.append(text((LEFT + CHART_WIDTH - RIGHT) / 2, CHART_HEIGHT - 4, "scattered blocks", "small"))
    last = -math.inf
    for name, kind, points in sorted(series, key=lambda item: down(item[2][-1][1])):
        way = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in points)
        body.append(f'<path d="M{way}" class="line {kind}"/>')
        body += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" class="dot {kind}"/>'
                 for x, y in points]
        # Names at the ends of the curves, without overlap.
        last = max(down(points[-1][1]) + 4, last + 14)
        body.append(text(CHART_WIDTH - RIGHT + 8, last, name, f"small {kind}", "start"))
    return svg(CHART_WIDTH, CHART_HEIGHT, title, "".join(body),
               "The numbers are in the table below.")


def short(number):
    """A number with few digits."""
    for size, unit in ((10 ** 9, "G"), (10 ** 6, "M"), (10 ** 3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:g}"
