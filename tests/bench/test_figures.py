"""Pictures of the benches are small, and show what was drawn."""

from PIL import Image

from bench.figures import panels, reduce_colours


def test_panels_are_written_in_few_colours(tmp_path):
    path = tmp_path / "two.png"
    with panels(path, ["left", "right"]) as (left, right):
        left.plot([1, 2, 3], color="red")
        right.plot([3, 2, 1], color="blue")
    with Image.open(path) as picture:
        assert picture.mode == "P"  # colours by number
        assert len(picture.getcolors()) <= 64
        seen = [colour for _, colour in picture.convert("RGB").getcolors(4096)]
    assert {(255, 255, 255), (255, 0, 0), (0, 0, 255)} <= set(seen)


def test_a_picture_of_many_colours_keeps_its_size_and_nearly_its_colours(tmp_path):
    path = tmp_path / "shades.png"
    shades = Image.linear_gradient("L").convert("RGB")
    shades.save(path)
    reduce_colours(path)
    with Image.open(path) as picture:
        assert picture.size == shades.size
        found = picture.convert("L")
    pairs = zip(found.tobytes(), shades.convert("L").tobytes(), strict=True)
    assert max(abs(one - other) for one, other in pairs) <= 4
