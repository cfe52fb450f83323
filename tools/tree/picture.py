"""The areas and who uses whom as an ASCII picture: a layer below all that use it, only the arrows that say something
new (if ddp uses comm and comm uses base, that ddp may use base is not drawn)."""
import textwrap

BEGIN = "<!-- areas: begin (tools/check_tree.py --picture) -->"
END = "<!-- areas: end -->"
COLUMNS = 100
BOX_COLUMNS = 24  # of text


def reduced(uses):
    """The transitive reduction of {area: set of areas}, which has no cycles."""
    reach = {}

    def reachable(area):
        if area not in reach:
            reach[area] = set().union(*({used} | reachable(used) for used in uses[area]))
        return reach[area]
    return {area: {used for used in mine if not any(used in reachable(other) for other in mine if other != used)}
            for area, mine in uses.items()}


def layers(uses):
    """[[areas]] from the top: each area is above what it uses, as low as it can be."""
    height = {}

    def height_of(area):
        if area not in height:
            height[area] = 1 + max((height_of(used) for used in uses[area]), default=-1)
        return height[area]
    for area in uses:
        height_of(area)
    return [sorted(area for area in uses if height[area] == level)
            for level in range(max(height.values(), default=-1), -1, -1)]


def draw(uses):
    """The picture's lines; uses: {area: areas that it may use}."""
    arrows = reduced({area: set(mine) & set(uses) for area, mine in uses.items()})
    for depth, areas in enumerate(layers(arrows)):
        if depth:
            yield ""
        row = []
        for box in (_box(area, sorted(arrows[area])) for area in areas):
            if row and sum(len(x[0]) + 1 for x in row) + len(box[0]) > COLUMNS:
                yield from _side_by_side(row)
                row = []
            row.append(box)
        yield from _side_by_side(row)


def _box(name, arrows):
    text = [name] + textwrap.wrap("-> " + ", ".join(arrows), BOX_COLUMNS, subsequent_indent="   ",
                                  break_on_hyphens=False) if arrows else [name]
    width = max(len(line) for line in text)
    edge = f"+{'-' * (width + 2)}+"
    return [edge] + [f"| {line.ljust(width)} |" for line in text] + [edge]


def _side_by_side(boxes):
    for number in range(max(len(box) for box in boxes)):
        yield " ".join(box[number] if number < len(box) else " " * len(box[0]) for box in boxes).rstrip()


def replaced(text, uses):
    """The page with the current picture between its markers; None if it has no markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        return None
    picture = "\n".join(draw(uses))
    return text[:text.index(BEGIN)] + f"{BEGIN}\n```\n{picture}\n```\n{END}" + text[text.index(END) + len(END):]
