"""The page and the documents as people see them, in a headless Chromium that reaches nothing but the server.

Every visit also asserts that nothing was fetched from elsewhere, that no script failed, and that the page's own policy
stopped nothing. Pictures of all views go to the folder that `browser.SHOTS` names. `OCELLI_BLESS=1` puts one of them into
the README.
"""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib

import localize
import numpy as np
import pytest
import requests
import tifffile
import wire
import yaml
from browser import SHOTS, chromium, violations
from PIL import Image, ImageOps
from server import ROOT, until

sys.path.insert(0, str(ROOT / "tools"))
import make_models  # noqa: E402

IMAGES = ROOT / "examples" / "images"
STACKS = ROOT / "tests" / "fixtures" / "stacks"
PICTURE = ROOT / "docs" / "images" / "page.png"
PICTURE_BYTES_MAX = 200_000
TOKEN = "a-token-of-sixteen-or-more"
MARKUP = "<img src=x onerror=alert(1)>"
THREE = (IMAGES / "digits" / "3-0.png").read_bytes()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        print(f"pictures of the page: {SHOTS}")
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The examples, a model of each other task, and one whose name and labels are markup."""
    folder = tmp_path_factory.mktemp("page") / "models"
    shutil.copytree(ROOT / "examples" / "models", folder)
    make_models.write(folder, ["embed", "segment", "enlarge", "image-identity", "pose", "instances", "turned"])
    shutil.copytree(ROOT / "examples" / "models" / "digits", folder / "marked")
    (folder / "marked" / "labels.txt").write_text("".join(f"{MARKUP}{index}\n" for index in range(10)))
    shutil.copytree(ROOT / "examples" / "models" / "digits", folder / MARKUP)
    return folder


@pytest.fixture(scope="module")
def site(browser, start_server, folder):
    server = start_server(folder, repository_mode="explicit", admin_token=TOKEN)
    yield server
    assert server.stop() == 0


def predicted(site, model, content, **query):
    """What the API says."""
    return requests.post(f"{site.url}/predictions/{model}", data=content, params=query, timeout=wire.TIMEOUT)


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_an_image_that_is_dropped_or_pasted_gets_its_label_its_timings_and_the_code(visit, how):
    window = visit()
    window.page.select_option("#model", "digits")
    window.give(how, ("my three.png", THREE))
    page = window.answered()
    assert page.inner_text(".card h2") == "my three.png"
    assert page.inner_text("#asking") == "Answered by digits: 3, 98.2 %.", "this is what is read aloud"
    assert page.inner_text(".classes li:first-child .name") == "3"
    assert page.inner_text(".classes li:first-child .score") == "98.2 %"
    wide = page.evaluate("document.querySelector('.classes .fill').getBoundingClientRect().width")
    whole = page.evaluate("document.querySelector('.classes .track').getBoundingClientRect().width")
    assert wide / whole == pytest.approx(0.982, abs=0.02), "a bar is as long as its score"
    assert page.locator(".legend dt").all_inner_texts() == ["Decode", "Queue", "Batch", "Compute", "Network and rest"]
    page.click("summary:has-text('The same from your code')")
    code = page.locator(".code pre").first
    assert code.inner_text() == f"curl -T 'my three.png' '{window.url}/predictions/digits?format=ocelli'"
    page.click("role=tab[name=Python]")
    assert "requests.post" in code.inner_text()
    page.keyboard.press("ArrowRight")
    assert "await fetch" in code.inner_text()
    page.click("summary:has-text('JSON')")
    assert json.loads(page.locator(".code pre").nth(1).inner_text())["classes"][0]["label"] == "3"
    window.shot("classify")


def test_a_server_that_answers_as_torchserve_shows_labels_as_well(visit, start_server, folder):
    server = start_server(folder, torchserve_answers="on")
    window = visit(url=server.url)
    window.page.select_option("#model", "digits")
    window.give("drop", ("3.png", THREE))
    page = window.answered()
    assert page.inner_text("#asking") == "Answered by digits: 3, 98.2 %."
    assert page.inner_text(".classes li:first-child .name") == "3"
    assert server.stop() == 0


def test_what_the_page_shows_as_code_works(visit, site, tmp_path):
    window = visit()
    window.give("drop", ("it's 3.png", THREE))
    page = window.answered()
    page.click("summary:has-text('The same from your code')")
    (tmp_path / "it's 3.png").write_bytes(THREE)
    commands = {"curl": ["bash", "-c"], "Python": [sys.executable, "-c"], "JavaScript": ["node", "--input-type=module", "-e"]}
    for name, command in commands.items():
        if shutil.which(command[0]) is None:
            print(f"{command[0]} is missing, so the code for it is NOT run")
            continue
        page.click(f"role=tab[name={name}]")
        code = page.locator(".code pre").first.inner_text()
        done = run([*command, code], tmp_path)
        assert done.returncode == 0 and re.search(r"""['"]?label['"]?: ?['"]3['"]""", done.stdout), f"{code}\n{done}"


def test_what_became_of_a_file_is_not_below_the_top_of_a_narrow_window(visit):
    window = visit(viewport={"width": 400, "height": 800})
    window.page.select_option("#model", "digits")
    window.give("drop", *((f"{at}.png", THREE) for at in range(8)))
    page = window.answered(8)
    top, says = (page.locator(name).bounding_box() for name in (".top", "#asking"))
    assert top["y"] + top["height"] <= says["y"] < 800, "it is read, and seen"


def test_what_the_page_shows_as_code_works_whatever_a_file_is_called(visit, tmp_path):
    names = ["a [1].png", "{a,b}.png", "[z-a].png", "-o.png", "-", "--", "@x", "$HOME `id`.png", "it's \"3\"!.png", "drei ₃ é.png", "a\\b.png",
             "*?.png", "#1 & ;|<>.png", "~", "%20+.png", " .png"]  # fmt: skip
    window = visit()
    window.page.select_option("#model", "digits")
    window.give("drop", *((name, THREE) for name in names))
    page = window.answered(len(names))
    commands = {"curl": ["sh", "-c"], "Python": [sys.executable, "-c"], "JavaScript": ["node", "--input-type=module", "-e"]}
    for at, name in enumerate(names):
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / name).write_bytes(THREE)
        card = page.locator("#answers .card").nth(at)
        assert card.locator("h2").text_content() == name
        card.locator("summary:has-text('The same from your code')").click()
        for language, command in commands.items():
            if shutil.which(command[0]) is None:
                continue
            card.locator(f"role=tab[name={language}]").click()
            code = card.locator(".code pre").first.text_content()
            done = run([*command, code], folder)
            assert done.returncode == 0 and re.search(r"""['"]?label['"]?: ?['"]3['"]""", done.stdout), f"{code}\n{done}"
        assert [path.name for path in folder.iterdir()] == [name]


def test_what_the_page_shows_as_code_for_a_stack_saves_a_file(visit, tmp_path):
    content = (IMAGES / "spots.tif").read_bytes()
    window = visit()
    window.page.select_option("#model", "spots")
    window.give("drop", ("spots.tif", content))
    page = window.answered()
    page.click("summary:has-text('The same from your code')")
    (tmp_path / "spots.tif").write_bytes(content)
    for name, command in {"curl": ["bash", "-c"], "Python": [sys.executable, "-c"]}.items():
        page.click(f"role=tab[name={name}]")
        done = run([*command, page.locator(".code pre").first.inner_text()], tmp_path)
        assert done.returncode == 0, done
        rows = (tmp_path / "spots.csv").read_text().splitlines()
        assert len([row for row in rows if not row.startswith("#")]) > 1000, name
        (tmp_path / "spots.csv").unlink()


def run(command, folder):
    """Runs a command as it was copied from the page."""
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_detectors_boxes_lie_where_the_api_says(visit, site):
    content = (IMAGES / "digits-detector" / "1.png").read_bytes()
    expected = predicted(site, "digits-detector", content).json()
    window = visit()
    window.page.click("[data-example='digits.png']")
    page = window.answered()
    assert page.input_value("#model") == "digits-detector", "an example chooses a model that it suits"
    boxes = page.locator(".box")
    assert boxes.count() == len(expected["detections"]) > 1
    frame = page.locator(".picture").bounding_box()
    for index, found in enumerate(expected["detections"]):
        box = boxes.nth(index).bounding_box()
        scale = frame["width"] / expected["image"]["width"]
        left, top, right, bottom = (edge * scale for edge in found["box"])
        got = (box["x"] - frame["x"], box["y"] - frame["y"], box["width"], box["height"])
        assert got == pytest.approx((left, top, right - left, bottom - top), abs=2)
        listed = page.locator(".found li").nth(index)
        said = [listed.locator(part).inner_text() for part in (".name", ".score")]
        assert boxes.nth(index).inner_text() == " ".join(said), "the box says what the list says"
        assert said[0] == found["label"]
    # Weaker ones can be hidden.
    page.evaluate("() => { const slider = document.querySelector('.range input'); slider.value = 90; slider.dispatchEvent(new Event('input')); }")
    assert boxes.count() == sum(found["score"] >= 0.9 for found in expected["detections"])
    window.shot("detect")


def scene(width, height):
    """A bright picture."""
    y, x = np.mgrid[:height, :width]
    stripes = 250 - 12 * (np.sin(x / 9) + np.cos(y / 7) > 0.4)
    packed = io.BytesIO()
    Image.fromarray(np.stack([stripes, stripes - 8, stripes - 20], 2).astype(np.uint8)).save(packed, "png")
    return packed.getvalue()


def hide_below(page, hundredths):
    """Moves the slider."""
    page.evaluate(
        "(value) => { const slider = document.querySelector('.range input'); slider.value = value; slider.dispatchEvent(new Event('input')); }",
        hundredths,
    )


def test_keypoints_are_dots_where_the_api_says(visit, site):
    content = scene(160, 96)
    expected = predicted(site, "pose", content).json()["detections"]
    window = visit()
    window.page.select_option("#model", "pose")
    window.give("drop", ("fish.png", content))
    page = window.answered()
    frame = page.locator(".picture").bounding_box()
    dots, rows = page.locator(".point"), page.locator(".found li")
    points = [(found["index"], point) for found in expected for point in found["keypoints"]]
    assert dots.count() == len(points) == 6 and page.locator(".box").count() == rows.count() == 2
    says = [f"{point['label']} {100 * point['score']:.1f} %" for _, point in points]
    for at, (_, point) in enumerate(points):
        dot = dots.nth(at).bounding_box()
        centre = (dot["x"] + dot["width"] / 2 - frame["x"], dot["y"] + dot["height"] / 2 - frame["y"])
        assert centre == pytest.approx((point["x"] * frame["width"] / 160, point["y"] * frame["height"] / 96), abs=1)
        assert dots.nth(at).get_attribute("title") == says[at]
    for row, (first, last) in enumerate(((0, 3), (3, 6))):
        assert rows.nth(row).get_attribute("title").endswith(f"\nkeypoints: {', '.join(says[first:last])}")
    # What is listed is lit, and nothing else.
    rows.nth(1).hover()
    assert [thing.get_attribute("class") for thing in page.locator(".thing").all()] == ["thing", "thing lit"]
    window.shot("pose")
    hide_below(page, 80)
    assert [found["score"] >= 0.8 for found in expected] == [True, False]
    assert page.locator(".box").count() == 1 and dots.count() == 3


def test_keypoints_beside_the_picture_are_not_seen_and_need_no_names_and_scores(visit):
    body = {"model": "pose", "version": "1", "image": {"width": 160, "height": 96}, "detections": [{
        "box": [20, 20, 90, 80], "label": None, "index": 3, "score": 0.5,
        "keypoints": [{"x": 30, "y": 40}, {"x": 40, "y": 40, "score": 12.345}, {"x": 190, "y": -20, "label": MARKUP}],
    }, {"box": [25, 30, 80, 70], "label": "over it", "index": 1, "score": 0.4}]}  # fmt: skip
    window = visit()
    window.page.route("**/predictions/pose*", lambda route: route.fulfill(json=body))
    window.page.select_option("#model", "pose")
    window.give("drop", ("fish.png", scene(160, 96)))
    page = window.answered()
    dots = page.locator(".point")
    assert [dot.get_attribute("title") for dot in dots.all()] == ["keypoint 0", "keypoint 1 12.3", MARKUP]
    seen = """(dot) => {
        const { x, y, width, height } = dot.getBoundingClientRect();
        return document.elementFromPoint(x + width / 2, y + height / 2) === dot;
    }"""
    assert [dot.evaluate(seen) for dot in dots.all()] == [True, True, False], "a box that lies over them does not hide them"
    frame, far = page.locator(".picture").bounding_box(), dots.nth(2).bounding_box()
    assert far["x"] > frame["x"] + frame["width"] and far["y"] < frame["y"], "it is not put at the edge"


def test_a_turned_box_is_an_outline_through_its_corners(visit, site):
    content = scene(160, 96)
    expected = predicted(site, "turned", content).json()["detections"]
    window = visit()
    window.page.select_option("#model", "turned")
    window.give("drop", ("ships.png", content))
    page = window.answered()
    outlines, frame = page.locator(".outline"), page.locator(".picture").bounding_box()
    assert outlines.count() == len(expected) == 2 and page.locator(".box").count() == 0, "in place of upright boxes"
    corners = """(outline) => [...outline.querySelectorAll("polygon")].map((polygon) => [...polygon.points].map((point) => {
        const { x, y } = point.matrixTransform(polygon.getScreenCTM());
        return [x, y];
    }))"""
    for at, found in enumerate(expected):
        scaled = np.array(found["corners"]) * frame["width"] / 160 + [frame["x"], frame["y"]]
        drawn = outlines.nth(at).evaluate(corners)
        assert len(drawn) == 2, "a line, and its dark edge"
        assert np.allclose(drawn, scaled, atol=1)
        tag = outlines.nth(at).locator(".tag")
        assert tag.inner_text() == f"ship {100 * found['score']:.1f} %"
        # Its foot is at the highest corner.
        said, highest = tag.bounding_box(), min(scaled.tolist(), key=lambda corner: corner[1])
        sides = (said["x"] - highest[0], said["x"] + said["width"] - highest[0])
        assert min(map(abs, sides)) < 2 and min(abs(said["y"] - highest[1]), abs(said["y"] + said["height"] - highest[1])) < 2
    width = "(outline) => getComputedStyle(outline.querySelector('polygon:last-child')).strokeWidth"
    page.locator(".found li").first.hover()
    assert [outline.evaluate(width) for outline in outlines.all()] == ["4px", "2px"], "what is listed is lit"
    window.shot("turned")
    hide_below(page, 80)
    assert [found["score"] >= 0.8 for found in expected] == [True, False]
    assert outlines.count() == 1 and outlines.first.evaluate(corners)[0][0] == pytest.approx(
        np.array(expected[0]["corners"][0]) * frame["width"] / 160 + [frame["x"], frame["y"]], abs=1
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_masks_of_things_cover_what_the_api_says(visit, site, scheme):
    # Red and blue, which overlap, on grey.
    y, x = np.mgrid[:96, :160]
    pixels = np.full((96, 160, 3), 110, np.uint8)
    pixels[np.hypot(x - 60, y - 40) < 32, 0] = 230
    pixels[np.hypot(x - 100, y - 55) < 34, 2] = 230
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "png")
    expected = predicted(site, "instances", packed.getvalue()).json()["detections"]
    assert sorted(found["index"] for found in expected) == [0, 1], "the first class is a thing as well"
    window = visit(color_scheme=scheme)
    window.page.select_option("#model", "instances")
    window.give("drop", ("discs.png", packed.getvalue()))
    page = window.answered()
    assert page.locator(".layer.mask").count() == 1
    painted = page.evaluate(
        "() => { const c = document.querySelector('.mask'); return [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]; }"
    )
    assert painted[:2] == [160, 96]
    painted = np.array(painted[2], np.uint8).reshape(96, 160, 4)
    wanted = np.zeros((96, 160, 4), np.uint8)
    for found in reversed(expected):
        mask, color = found["mask"], page.locator(".found .swatch").nth(expected.index(found))
        inside = np.repeat(np.arange(len(mask["counts"])) % 2 == 1, mask["counts"]).reshape(160, 96).T
        assert inside.sum() == mask["pixels"] > 0
        wanted[inside] = [*map(int, re.findall(r"\d+", color.evaluate("e => getComputedStyle(e).backgroundColor"))), 255]
    whole = sum(found["mask"]["pixels"] for found in expected)
    assert 0 < (wanted[..., 3] > 0).sum() < whole, "they overlap"
    assert (painted == wanted).all(), "the best is on top, in the colours of the list"
    first = page.evaluate("() => [...document.querySelector('.over').children].map((e) => e.className)")
    assert first == ["layer mask", "thing", "thing"], "below all boxes"
    assert violations(page, "instances") == []
    window.shot(f"instances-{scheme}")
    hide_below(page, 100)
    assert page.locator(".box").count() == page.locator(".mask").count() == 0


@pytest.mark.parametrize("model, picture", [("segment", "digits/3-0.png"), ("digits-segmenter", "digits-segmenter/0.png")])
def test_a_mask_covers_what_its_classes_cover(visit, site, model, picture):
    content = (IMAGES / picture).read_bytes()
    window = visit()
    window.page.select_option("#model", model)
    window.give("drop", ("picture.png", content))
    page = window.answered()
    mask = predicted(site, model, content, mask="rle").json()["mask"]
    covered = "() => { const c = document.querySelector('.mask'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"
    classes = {entry["index"]: entry["pixels"] for entry in mask["classes"] if entry["index"] > 0}
    assert classes and page.evaluate(covered) == sum(classes.values())
    first = page.locator(".found input:checked").first
    first.click()
    assert page.evaluate(covered) == sum(classes.values()) - classes[min(classes)]
    page.locator(".found input").nth([entry["index"] for entry in mask["classes"]].index(min(classes))).check()
    window.shot(model)


def test_the_first_class_of_a_mask_is_off_until_it_is_wanted(visit, site):
    window = visit()
    page = window.page
    page.select_option("#model", "segment")
    window.give("drop", ("picture.png", THREE))
    window.answered()
    (first,) = [entry for entry in predicted(site, "segment", THREE, mask="rle").json()["mask"]["classes"] if entry["index"] == 0]
    box = page.locator(".found input").first
    assert not box.is_checked()
    for other in page.locator(".found input:checked").all():
        other.uncheck()
    box.check()
    covered = "() => { const c = document.querySelector('.mask'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"
    assert page.evaluate(covered) == first["pixels"] > 0


def test_a_picture_lies_over_the_image_and_can_be_switched_off_and_saved(visit):
    window = visit()
    window.page.select_option("#model", "enlarge")
    window.give("drop", ("three.png", THREE))
    page = window.answered()
    page.wait_for_selector(".layer.made", state="attached")
    expected = np.asarray(Image.open(io.BytesIO(THREE)).convert("RGB")).repeat(2, 0).repeat(2, 1)
    read = "() => { const c = document.querySelector('.made'); return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
    page.wait_for_function("() => { const c = document.querySelector('.made'); return c.getContext('2d').getImageData(0, 0, 1, 1).data[3] > 0; }")
    shown = np.array(page.evaluate(read), np.uint8).reshape(128, 128, 4)
    assert (shown[..., :3] == expected).all() and (shown[..., 3] == 255).all()
    page.get_by_label("Show the answer over the image").uncheck()
    assert not page.locator(".made").is_visible()
    with page.expect_download() as saved:
        page.get_by_text("Save the picture").click()
    assert (np.asarray(Image.open(saved.value.path())) == expected).all()
    window.shot("image")


@pytest.mark.parametrize(
    "example, model, seen",
    [
        ("three.png", "digits", ".classes .fill"),
        ("digits.png", "digits-detector", ".box"),
        ("parts.png", "digits-segmenter", ".layer.mask"),
        ("other.png", "enlarge", ".layer.made"),
        ("alike.png", "digits-embedder", ".plot .bars"),
        ("movie.npy", "spots", ".rendered"),
    ],
)
def test_every_task_has_an_example_of_one_click(visit, example, model, seen):
    page = visit().page
    page.click(f"[data-example='{example}']")
    page.wait_for_selector(seen, state="attached")
    assert page.input_value("#model") == model
    assert page.locator("#answers .refusal").count() == 0


def test_what_no_model_here_answers_is_no_example(visit, start_server, only_digits):
    server = start_server(only_digits)
    page = visit(url=server.url).page
    page.wait_for_selector("[data-example='three.png']")
    shown = [button.get_attribute("data-example") for button in page.locator(".example").all() if button.is_visible()]
    assert shown == ["three.png", "seven.png"]
    assert server.stop() == 0


def test_vectors_and_tensors_are_drawn_and_listed(visit):
    window = visit()
    for model in ("digits-embedder", "embed", "image-identity"):
        window.page.select_option("#model", model)
        window.give("drop", ("three.png", THREE))
        page = window.answered()
        page.wait_for_selector(".plot .bars" if "embed" in model else ".result .says table", state="attached")
        window.shot(model)


def test_spots_are_shown_on_their_frames_with_the_picture_of_all(visit, site):
    content = (IMAGES / "spots.tif").read_bytes()
    lines = [json.loads(line) for line in predicted(site, "spots", content).text.splitlines()]
    window = visit()
    window.page.select_option("#model", "spots")
    window.give("drop", ("spots.tif", content))
    page = window.answered()
    assert f"{lines[-1]['localizations']} localizations in {lines[-1]['frames']} frames" in page.inner_text(".result .says")
    page.wait_for_selector(".rendered")
    assert page.evaluate("document.querySelector('.rendered').naturalWidth") >= 400
    first = next(line for line in lines if line.get("count"))
    assert page.inner_text(".frames output") == f"Frame {first['frame'] + 1} of 160: {first['count']} spots"
    # The rings lie around the places: the pixels there are lit.
    place = [first["x_nm"][0] / 100, first["y_nm"][0] / 100]
    lit = page.evaluate(
        """([x, y]) => {
            const layer = document.querySelector(".layer");
            const scale = layer.width / 96;
            const at = (dx) => layer.getContext("2d").getImageData(Math.round((x + dx + 0.5) * scale), Math.round((y + 0.5) * scale), 1, 1).data[3];
            return [at(3.2), at(0)];
        }""",
        place,
    )
    assert lit[0] > 0 and lit[1] == 0
    slider = page.locator(".frames input")
    slider.focus()
    page.keyboard.press("End")
    assert page.inner_text(".frames output").startswith("Frame 160 of 160")
    window.shot("spots")


def test_a_stack_that_breaks_off_shows_what_came_before_and_the_mistake(visit, site):
    content = (IMAGES / "spots.tif").read_bytes()[:200_000]
    last = json.loads(predicted(site, "spots", content, format="ndjson").text.splitlines()[-1])
    assert last["localizations"] > 0
    window = visit()
    window.page.select_option("#model", "spots")
    window.give("drop", ("cut.tif", content))
    page = window.answered()
    says = page.locator(".result .says")
    assert f"{last['localizations']} localizations in the first 25 frames" in says.inner_text()
    assert page.inner_text(".frames output").startswith("Frame 1 of 25: ") and page.locator(".layer").count() == 1
    assert page.locator(".result .none").count() == 0, "the frames before the cut are shown"
    refused = says.locator(".refusal")
    assert refused.locator("h3").inner_text().lower() == "the stack broke off"
    assert last["error"] in refused.inner_text()
    assert re.search(r"Request [0-9a-f]{8}-[0-9a-f-]{27}", refused.inner_text())
    assert says.locator("button").all_inner_texts() == ["CSV", "ThunderSTORM"], "the others are of whole stacks"
    with page.expect_download() as saved:
        says.locator("button", has_text="CSV").click()
    assert last["error"] in saved.value.path().read_text().splitlines()[-1]
    window.shot("broken")
    page.click("text=What it means, and what to do")
    page.wait_for_url("**/docs/errors#not-an-image")


def test_a_reply_that_is_cut_off_shows_what_came_before(visit, site):
    content = (IMAGES / "spots.tif").read_bytes()
    lines = predicted(site, "spots", content, format="ndjson").text.splitlines()
    window = visit()
    window.page.route("**/predictions/spots?*", lambda route: route.fulfill(body="\n".join(lines[:4]) + "\n" + lines[4][:50]))
    window.page.select_option("#model", "spots")
    window.give("drop", ("spots.tif", content))
    page = window.answered()
    found = [json.loads(line) for line in lines[1:4]]
    told = f"{sum(line['count'] for line in found)} localizations in the first {found[-1]['frame'] + 1} frames"
    assert told in page.inner_text(".result .says")
    assert "the reply has no end" in page.inner_text(".result .says .refusal")


def test_a_stack_that_the_browser_cannot_paint_is_answered_all_the_same(visit):
    packed = io.BytesIO()
    tifffile.imwrite(packed, localize.movie()[:20].astype(np.float16), photometric="minisblack")
    window = visit()
    window.page.select_option("#model", "spots")
    window.give("drop", ("half.tif", packed.getvalue()))
    page = window.answered()
    assert page.locator("#answers .refusal").count() == 0
    assert "localizations in 20 frames" in page.inner_text(".result .says")
    assert page.inner_text(".result .shown .none").startswith("No preview: ")


def test_the_movie_that_is_made_here_is_a_stack_with_known_rings(visit):
    window = visit()
    window.page.click("[data-example='movie.npy']")
    page = window.answered()
    page.wait_for_selector(".rendered")
    count = int(page.inner_text(".result .says .count").split()[0])
    assert 1500 < count < 2400, count
    window.shot("movie")


# Stacks that the page does not show, and why.
NOT_SHOWN = {
    "deflate_predictor_f4.tif": "predictor 3 is not supported",
    "deflate_predictor_f8_big_endian.tif": "predictor 3 is not supported",
    "jpeg.tif": "compression 7 is not supported",
    "packbits.tif": "compression 32773 is not supported",
    "pages_f2.tif": "samples of format 3 are not supported",
    "pages_i8.tif": "samples of format 2 are not supported",
    "pages_u8.tif": "samples of format 1 are not supported",
    "two_sizes.tif": "its pages differ in height",
    "two_types.tif": "its pages differ in bits",
    "zstd.tif": "compression 50000 is not supported",
}
# For those that tifffile reads only with more packages: one that has the same pixels.
SAME_PIXELS = dict.fromkeys(["libtiff_lzw.tif", "lzw.tif", "lzw_predictor_strips.tif"], "pages.tif") | {"tiles_f4_lzw.tif": "pages_f4.tif"}


def test_stacks_are_shown_with_the_pixels_that_they_have_and_others_are_refused_with_why(visit):
    page = visit().page
    refused = {}
    for path in sorted(STACKS.glob("*.tif")):
        got = page.evaluate(
            """async (bytes) => {
                const { openTiff } = await import("/page/tiff.js");
                try {
                    const stack = openTiff(Uint8Array.from(bytes).buffer);
                    const last = stack.frames - 1;
                    return { frames: stack.frames, size: [stack.height, stack.width], last: [...(await stack.frame(last))] };
                } catch (error) {
                    return { reason: error.message };
                }
            }""",
            list(path.read_bytes()),
        )
        if "reason" in got:
            refused[path.name] = got["reason"]
            continue
        expected = tifffile.imread(path.with_name(SAME_PIXELS.get(path.name, path.name)))
        expected = expected.reshape(-1, *got["size"], *expected.shape[3:]) if expected.ndim < 4 else expected.reshape(got["frames"], -1)
        assert len(expected) == got["frames"], path.name
        assert (np.float32(got["last"]) == expected[-1].astype(np.float32).ravel()).all(), path.name
    assert refused == NOT_SHOWN


@pytest.mark.parametrize("tag", [(254, "I", 1, 1), (255, "H", 1, 2)])
def test_reduced_copies_are_no_frames_unless_there_is_nothing_else(visit, tag):
    page = visit().page

    def shown(*pages):
        file = io.BytesIO()
        with tifffile.TiffWriter(file) as tiff:
            for value, reduced in pages:
                options = {"subfiletype": tag[3]} if tag[0] == 254 and reduced else {"extratags": [(*tag, True)] if reduced else []}
                tiff.write(np.full((4, 5), value, np.uint8), photometric="minisblack", contiguous=False, metadata=None, **options)
        return page.evaluate(
            """async (bytes) => {
                const { openTiff } = await import("/page/tiff.js");
                const stack = openTiff(Uint8Array.from(bytes).buffer);
                return Promise.all(Array.from({ length: stack.frames }, async (_, index) => (await stack.frame(index))[0]));
            }""",
            list(file.getvalue()),
        )

    assert shown((1, False), (2, True), (3, False)) == [1, 3]
    assert shown((1, True), (2, True)) == [1]


@pytest.mark.parametrize("name", ["TIFF", "WEBP", "PNG"])
def test_pictures_are_shown_as_the_server_turns_them(visit, name):
    stored = np.random.default_rng(1).integers(0, 255, (2, 3, 3), np.uint8)
    files, seen = [], []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        file = io.BytesIO()
        image = Image.fromarray(stored)
        if name == "TIFF":
            tifffile.imwrite(file, stored, photometric="rgb", metadata=None, extratags=[(274, "H", 1, orientation, True)])
        else:
            image.save(file, name, exif=exif, **({"lossless": True} if name == "WEBP" else {}))
        image.getexif().update(exif)
        files.append((f"{orientation}.{name.lower()}", file.getvalue()))
        seen.append(np.asarray(ImageOps.exif_transpose(image)))
    window = visit()
    window.page.select_option("#model", "digits")
    window.give("drop", *files)
    page = window.answered(8)
    shown = page.evaluate(
        "() => [...document.querySelectorAll('.picture > canvas')].map((c) =>"
        " [c.height, c.width, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]])"
    )
    for (file, _), (height, width, data), expected in zip(files, shown, seen, strict=True):
        assert (np.reshape(data, (height, width, 4))[..., :3] == expected).all(), file


def test_frames_of_a_stack_lie_as_they_are_stored(visit):
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((4, 6), np.uint16), extratags=[(274, "H", 1, 6, True)])
    size = visit().page.evaluate(
        """async (bytes) => {
            const { open } = await import("/page/stack.js");
            const file = new File([Uint8Array.from(bytes)], "a.tif");
            return Promise.all([{ asStored: true }, {}].map(async (how) => {
                const { width, height } = await open(file, how);
                return [width, height];
            }));
        }""",
        list(file.getvalue()),
    )
    assert size == [[6, 4], [4, 6]]


def test_nothing_is_drawn_on_a_picture_of_another_size_than_the_model_was_asked_about(visit):
    window = visit()
    page = window.page

    def of_another_size(route):
        reply = route.fetch()
        route.fulfill(response=reply, json={**reply.json(), "image": {"width": 10, "height": 20}})

    page.route("**/predictions/**", of_another_size)
    page.select_option("#model", "digits-detector")
    window.give("drop", ("digits.png", (IMAGES / "digits-detector" / "0.png").read_bytes()))
    window.answered()
    assert page.inner_text(".shown").startswith("No preview: ") and page.locator(".found li").count() > 0
    assert page.locator(".box:visible, canvas:visible").count() == 0


@pytest.mark.parametrize("name", ["three.txt", "three.pdf", "three.html", "three.json", "three.zip"])
def test_an_image_is_one_whatever_it_is_called(visit, tmp_path, name):
    (tmp_path / name).write_bytes(THREE)
    window = visit()
    window.page.select_option("#model", "digits")
    window.page.set_input_files("#files", tmp_path / name)
    assert window.answered().inner_text("#asking") == "Answered by digits: 3, 98.2 %."


def test_a_stack_is_one_whatever_it_is_called(visit, tmp_path):
    (tmp_path / "spots.txt").write_bytes((IMAGES / "spots.tif").read_bytes())
    window = visit()
    page = window.page
    page.select_option("#model", "spots")
    page.set_input_files("#files", tmp_path / "spots.txt")
    window.answered()
    page.wait_for_selector(".rendered")
    with page.expect_download():
        page.click("button:text-is('CSV')")


@pytest.mark.parametrize("what", ["changed", "removed", "folder"])
def test_a_file_that_cannot_be_read_is_not_the_servers_fault(visit, tmp_path, what):
    window = visit()
    page = window.page
    page.select_option("#model", "digits")
    file = tmp_path / "three.png"
    file.write_bytes(THREE)
    if what == "folder":
        place = page.locator("#drop").bounding_box()
        data = {"items": [], "files": [str(tmp_path)], "dragOperationsMask": 1}
        mouse = window.context.new_cdp_session(page)
        for kind in ("dragEnter", "dragOver", "drop"):
            mouse.send("Input.dispatchDragEvent", {"type": kind, "x": place["x"] + 20, "y": place["y"] + 20, "data": data})
    else:
        page.set_input_files("#files", file)
        window.answered()
        file.unlink()
        if what == "changed":
            file.write_bytes(THREE + b"and more")
        page.click("summary:has-text('Settings')")
        page.click("#again")
    page.wait_for_selector(".card .refusal")
    assert page.locator(".card h3").inner_text().lower() == "the browser cannot read the file"
    assert "choose it again" in page.inner_text(".refusal")


def test_an_example_that_cannot_be_fetched_says_so_in_place_of_the_last_answer(visit):
    window = visit()
    page = window.page
    page.click("[data-example='three.png']")
    window.answered()
    for how, told in ((lambda route: route.abort(), "the server cannot be reached"), (lambda route: route.fulfill(status=502, body="<p>"), "status 502")):
        page.route("**/page/*.png", how)
        page.click("[data-example='seven.png']")
        page.wait_for_selector(f"#answers > .refusal:has-text('{told}')")
        assert page.locator(".card").count() == 0 and page.inner_text("#asking") == ""
        page.unroute("**/page/*.png")


def test_a_mask_is_shown_of_as_large_an_image_as_the_server_takes(visit, start_server, folder):
    picture = io.BytesIO()
    Image.open(IMAGES / "digits-segmenter" / "0.png").resize((900, 900)).save(picture, "PNG")
    # Run lengths of that many pixels take three times the memory of a PNG.
    server = start_server(folder, image_pixels_max=1_000_000, decode_bytes_max=7_000_000)
    reply = predicted(server, "digits-segmenter", picture.getvalue(), mask="rle")
    wire.problem(reply, 413, "memory to write the mask")
    window = visit(url=server.url)
    window.page.select_option("#model", "digits-segmenter")
    window.give("drop", ("large.png", picture.getvalue()))
    assert window.answered().locator(".found input").count() > 1
    window.page.wait_for_selector(".mask", state="attached")
    assert server.stop() == 0


@pytest.mark.parametrize("bits", [8, 16])
def test_each_pixel_of_a_mask_is_known_however_its_rows_are_packed(visit, bits):
    random = np.random.default_rng(bits)
    # Slopes and noise, for which an encoder takes each of its ways.
    rows, columns = np.mgrid[0:60, 0:70]
    values = (rows * 3 + columns * (2 if bits == 8 else 300)) % 2**bits
    values[20:40] = random.integers(0, 2**bits, (20, 70))
    values[40:, 5:] = values[40:, :-5]
    bytes_each = bits // 8
    raw = values.astype(f">u{bytes_each}").tobytes()
    packed = filtered(raw, 70 * bytes_each, bytes_each)
    head = struct.pack(">2I5B", 70, 60, bits, 0, 0, 0, 0)
    halves = zlib.compress(packed)
    chunks = [(b"IHDR", head), (b"IDAT", halves[:99]), (b"IDAT", halves[99:]), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), values), "this test's own packing"
    got = visit().page.evaluate("async (bytes) => [...(await (await import('/page/png.js')).valuesOf(Uint8Array.from(bytes)))]", list(png))
    assert got == values.ravel().tolist()


def filtered(raw, wide, bytes_each):
    """The rows of a PNG, in each of its five ways in turn."""
    rows = [np.zeros(wide + bytes_each, np.int32)]
    packed = b""
    for index in range(len(raw) // wide):
        above = rows[-1]
        row = np.concatenate([np.zeros(bytes_each, np.int32), np.frombuffer(raw, np.uint8, wide, index * wide)])
        left, up, corner = row[:-bytes_each], above[bytes_each:], above[:-bytes_each]
        slope = left + up - corner
        near = [np.abs(slope - each) for each in (left, up, corner)]
        paeth = np.where((near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner))
        guess = [0 * left, left, up, (left + up) // 2, paeth][index % 5]
        packed += bytes([index % 5]) + ((row[bytes_each:] - guess) % 256).astype(np.uint8).tobytes()
        rows.append(row)
    return packed


def test_the_score_is_seen_beside_the_longest_label(visit):
    window = visit()
    page = window.page

    def long(route):
        reply = route.fetch()
        body = reply.json()
        body["detections"][0].update(label="w" * 200, score=12.5)
        route.fulfill(response=reply, json=body)

    page.route("**/predictions/**", long)
    page.select_option("#model", "digits-detector")
    window.give("drop", ("digits.png", (IMAGES / "digits-detector" / "0.png").read_bytes()))
    window.answered()
    tag = page.locator(".tag:has-text('www')")
    assert tag.inner_text().endswith("12.5"), "what is above 1 is no part of one"
    assert tag.evaluate("tag => tag.lastChild.nodeType === 3 && tag.scrollWidth <= tag.clientWidth")


def test_an_error_is_shown_as_the_server_says_it(visit):
    window = visit()
    window.give("drop", ("not.png", b"no image"), ("three.png", THREE))
    page = window.answered(2)
    refused = page.locator(".card").first
    assert refused.locator("h3").inner_text().lower() == "the bytes are not an image we can decode"
    text = refused.inner_text()
    assert "tried JPEG, PNG" in text and "Status 400" in text
    assert re.search(r"request [0-9a-f]{8}-[0-9a-f-]{27}", text)
    assert page.locator(".card").nth(1).locator(".classes").count() == 1, "the other file is answered"
    assert page.inner_text("#asking") == "1 of 2 answered by digits, 1 failed."
    window.shot("error")


def test_an_error_leads_to_what_is_said_about_it_which_needs_no_scripts(visit):
    window = visit()
    window.give("drop", ("not.png", b"no image"))
    page = window.answered()
    page.click("text=What it means, and what to do")
    page.wait_for_url("**/docs/errors#not-an-image")
    assert page.evaluate("document.querySelector(':target').textContent") == "not-an-image"
    plain = visit("/docs/errors#not-an-image", java_script_enabled=False).page
    text = plain.inner_text("main")
    assert "400: the bytes are not an image we can decode." in text and "What to do:" in text
    assert plain.locator("script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["errors", "options", "metrics"])
def test_the_manuals_are_readable_and_link_to_each_other(visit, name, scheme):
    window = visit(f"/docs/{name}", color_scheme=scheme)
    page = window.page
    assert page.inner_text("h1").lower() == name == page.inner_text(".books [aria-current]").lower()
    assert violations(page, name) == []
    window.shot(f"manual-{name}-{scheme}", whole=False)
    lost = page.evaluate(
        "() => [...document.querySelectorAll('a[href^=\"#\"]')].filter((a) => !document.getElementById(a.hash.slice(1))).map((a) => a.hash)"
    )
    assert lost == [], "links within lead somewhere"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"{window.url}/docs/options")
    page.click("nav >> text=Errors")
    page.wait_for_url("**/docs/errors")


def test_names_with_markup_are_shown_as_text(visit):
    window = visit()
    page = window.page
    page.select_option("#model", "marked")
    window.give("drop", (f"{MARKUP}.png", THREE))
    window.answered()
    assert page.inner_text(".card h2") == f"{MARKUP}.png"
    assert page.inner_text(".classes li:first-child .name") == f"{MARKUP}3"
    assert page.locator("#model option").all_inner_texts().count(MARKUP) <= 1
    page.click("nav >> text=Models")
    page.wait_for_selector(".model")
    assert MARKUP in page.locator(".model h2").all_inner_texts()
    page.click("nav >> text=Live")
    page.wait_for_selector("#traffic tbody tr")
    assert page.locator("img[src=x]").count() == 0


def test_the_live_view_shows_devices_traffic_and_models(visit, site):
    window = visit("/#live")
    page = window.page
    page.wait_for_selector(".device")
    assert "cpu" in page.inner_text(".device") and "serving" in page.inner_text(".device")

    def busy():
        predicted(site, "digits", THREE)
        row = page.locator("#traffic tbody tr", has=page.locator("th", has_text=re.compile("^digits$")))
        return float(row.locator(".trend span").inner_text().split()[0].replace("–", "0")) > 0

    until(busy, 60, "requests are seen")
    assert page.locator(".tile").count() == 6
    path = page.locator("[data-tile=requests] .line").get_attribute("d")
    assert path.startswith("M"), "the rate is drawn"
    window.shot("live")


def test_requests_and_latency_are_those_of_inference_by_http_and_grpc(visit):
    counted = [
        "/predictions/{model}", "/predictions/{model}/{version}", "/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict",
        "/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer", "/inference.GRPCInferenceService/ModelInfer",
        *(f"/org.pytorch.serve.grpc.inference.InferenceAPIsService/{call}" for call in ("Predictions", "StreamPredictions")),
    ]  # fmt: skip
    stacks = ["/predictions/{model} (stack)", "/predictions/{model}/{version} (stack)"]
    others = [
        "/v1/models/{model}", "/v1/models/{model}/versions/{version}", "/v2/models/{model}/ready",
        "/inference.GRPCInferenceService/ModelReady", "/inference.GRPCInferenceService/ModelStreamInfer",
    ]  # fmt: skip
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "ocelli.rules.yml").read_text())["groups"]
    (pattern,) = {match for group in rules for rule in group["rules"] for match in re.findall(r'route=~"([^"]+)"', rule["expr"])}
    everything = counted + stacks + others
    assert [route for route in everything if re.fullmatch(pattern, route)] == counted, "as the objectives have it, which leave stacks out"
    counted += stacks
    looks = 0

    def metrics(route):
        nonlocal looks
        looks += 1
        name = "ocelli_http_request_duration_seconds_count"
        # As many as there are items, where no other route is counted.
        lines = [f'{name}{{route="{each}"}} {looks}' for each in counted] + [f'{name}{{route="{each}"}} {1000 * looks}' for each in others]
        route.fulfill(body="\n".join([*lines, f'ocelli_items_total{{device="cpu",model="a"}} {len(counted) * looks}\n']))

    window = visit()
    page = window.page
    page.route("**/metrics", metrics)
    page.click("nav >> text=Live")
    tiles = "['requests', 'items'].map((name) => document.querySelector(`[data-tile=${name}] .value`)?.textContent)"
    page.wait_for_function(f"() => ![undefined, '–'].includes({tiles}[0])")
    requests_, items = page.evaluate(f"() => {tiles}")
    assert requests_ == items != "0 /s"


def test_the_samples_of_many_models_are_gone_through_once(visit):
    names = [f"model-{number}" for number in range(500)]
    text = "\n".join(f'ocelli_outcomes_total{{model="{name}",outcome="{outcome}"}} 1' for name in names for outcome in ("ok", "late"))
    reads, sums = visit().page.evaluate(
        """async ([text, names]) => {
            const { parse, sum } = await import("/page/prometheus.js");
            const samples = parse(text);
            let reads = 0;
            const get = (list, key, all) => {
                if (/^[0-9]+$/.test(String(key))) reads += 1;
                return Reflect.get(list, key, all);
            };
            for (const [name, list] of samples) samples.set(name, new Proxy(list, { get }));
            const sums = names.map((model) => sum(samples, "ocelli_outcomes_total", { model }));
            return [reads, sums];
        }""",
        [text, names],
    )
    assert sums == [2] * 500
    assert reads <= 2 * 1000, f"{reads} of 1000 samples"


def test_what_is_selected_in_the_live_view_stays_so_while_numbers_change(visit):
    window = visit("/#live")
    page = window.page
    page.wait_for_selector(".device h3")
    page.wait_for_selector("#traffic tbody tr")
    for place in (".device h3", "#traffic tbody th", ".tile h2"):
        text = page.evaluate(
            "(place) => { const r = document.createRange(); r.selectNodeContents(document.querySelector(place));"
            " getSelection().removeAllRanges(); getSelection().addRange(r); return getSelection().toString(); }",
            place,
        )
        path = page.locator("[data-tile=memory] .line").get_attribute("d")
        page.wait_for_function("(path) => document.querySelector('[data-tile=memory] .line').getAttribute('d') !== path", arg=path)
        assert page.evaluate("getSelection().toString()") == text != ""


def test_lists_of_a_model_stay_open_when_another_changes(visit, site):
    page = visit("/#models").page
    page.click("[data-model=digits] summary")

    def change(act, then):
        url = f"{site.url}/v2/repository/models/marked/{act}"
        assert requests.post(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=wire.TIMEOUT).status_code == 200
        page.wait_for_selector(f"[data-model=marked] .state[data-state={then}]")
        assert page.locator("[data-model=digits] details[open]").count() == 1

    change("unload", "bad")
    change("load", "good")


def test_a_gpu_is_shown_with_what_is_told_of_it(visit):
    told = {
        "id": "GPU-1", "name": f"Card {MARKUP}", "state": "waiting", "reason": "another process computes on it", "since_s": 75.2,
        "drained": False, "waited_s": 75.0, "utilization_percent": 93, "temperature_c": 61, "power_w": 212.5,
        "memory": {"total_bytes": 8 << 30, "free_bytes": 2 << 30, "own_bytes": 1 << 30, "others_bytes": 5 << 30, "needed_bytes": 3 << 30},
        "other_processes": [{"pid": 1, "memory_bytes": 5 << 30}],
    }  # fmt: skip
    unknown = {"id": "cpu", "name": None, "state": "serving", "reason": "", "memory": {"total_bytes": None}, "power_w": None}
    window = visit()
    page = window.page
    page.route("**/v2/devices", lambda route: route.fulfill(json={"devices": [told, unknown]}))
    page.click("nav >> text=Live")
    page.wait_for_selector("[data-device=GPU-1]")
    card = page.inner_text("[data-device=GPU-1]")
    for part in (MARKUP, "waiting", "another process", "for 75 s", "6 GiB of 8 GiB, 1 GiB ours", "93 %", "213 W", "61 °C", "1 other process", "needs 3 GiB"):
        assert part in card, f"{part} is not in {card}"
    wide = page.evaluate("() => [...document.querySelectorAll('.meter')].map((m) => [...m.querySelectorAll('.part')].map((p) => p.style.width))")
    assert wide == [["12.5%", "62.5%"], ["93%"]], wide
    assert page.inner_text("[data-device=cpu]").split() == ["cpu", "serving"]
    assert violations(page, "devices") == []
    window.shot("devices")


def test_models_are_unloaded_and_loaded_by_who_has_the_token(visit, site):
    window = visit("/#models")
    page = window.page
    card = page.locator("[data-model=digits]")
    card.wait_for()
    assert "10 labels" in card.inner_text() and "FP32 [any, 1, 32, 32]" in card.inner_text()
    page.click("[data-control='unload digits']")
    page.wait_for_function("() => document.querySelector('#models-says').textContent.includes('authorization must be Bearer')")
    page.wait_for_selector("#token-box[open]")
    page.fill("#token", TOKEN)
    page.click("#token-form button")
    page.click("[data-control='unload digits']")
    page.wait_for_function("() => document.querySelector('#models-says').textContent.includes('digits is unloaded')")
    assert site.status("/v2/models/digits/ready") != 200
    assert "it is not loaded" in card.inner_text() or "unavailable" in card.inner_text()
    page.click("[data-control='load digits']")
    page.wait_for_function("() => document.querySelector('#models-says').textContent.includes('digits is loaded')")
    assert site.status("/v2/models/digits/ready") == 200
    assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
    window.shot("models")


def test_everything_can_be_done_with_the_keyboard(visit):
    window = visit()
    page = window.page
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => { const e = document.activeElement; const s = getComputedStyle(e.id === 'files' ? e.nextElementSibling : e);"
            " return [e.id || e.dataset.example || e.textContent.trim(), s.outlineStyle, parseFloat(s.outlineWidth)]; }"
        )
        assert focused[1] != "none" and focused[2] >= 2, f"the focus on {focused[0]} is not seen"
        seen.append(focused[0])
        if focused[0] == "digits.png":
            break
    assert seen[0] == "Skip to content" and "model" in seen and "files" in seen, seen
    page.keyboard.press("Enter")
    window.answered()
    assert page.locator(".box").count() > 1
    assert re.match(r"Answered by digits-detector: \d found, \d, ", page.inner_text("#asking"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_by_day_and_by_night_and_by_machines_that_read_aloud(visit, scheme):
    window = visit(color_scheme=scheme, reduced_motion="reduce")
    page = window.page
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert (light > 200) == (scheme == "light"), ground
    states = [("try-empty", lambda: None), ("try-boxes", lambda: page.click("[data-example='digits.png']")), ("try-spots", lambda: page.click("[data-example='movie.npy']"))]
    found = []
    for name, prepare in states:
        prepare()
        if name != "try-empty":
            window.answered()
            for summary in page.locator("summary").all():
                if summary.is_visible() and not summary.evaluate("e => e.parentElement.open"):
                    summary.click()
        if name == "try-spots":
            page.wait_for_selector(".rendered")
        found += violations(page, name)
        window.shot(f"{name}-{scheme}")
    for view, there in (("live", ".device"), ("models", ".model")):
        page.goto(f"{window.url}/#{view}")
        page.wait_for_selector(there)
        found += violations(page, view)
        window.shot(f"{view}-{scheme}")
    assert found == [], "\n".join(found)


def test_a_telephone_is_wide_enough(visit):
    window = visit(viewport={"width": 390, "height": 844}, device_scale_factor=2, has_touch=True)
    page = window.page
    page.click("[data-example='digits.png']")
    window.answered()
    page.click("summary:has-text('The same from your code')")
    for view, there in (("try", ".box"), ("live", ".device"), ("models", ".model")):
        page.goto(f"{window.url}/#{view}")
        page.wait_for_selector(there)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        window.shot(f"telephone-{view}")


@pytest.mark.parametrize("path", ["/", "/#live", "/#models", "/docs", "/docs/errors", "/docs/options", "/docs/metrics"])
def test_nothing_scrolls_sideways_on_the_narrowest_telephone(visit, path):
    window = visit(path, viewport={"width": 320, "height": 640})
    there = {"/#live": ".device", "/#models": ".model", "/docs": ".opblock"}
    window.page.wait_for_selector(there.get(path, "main"))
    assert window.page.evaluate("document.documentElement.scrollWidth") <= 320
    window.shot(f"narrow-{path.strip('/#').replace('/', '-')}", whole=False)


def test_settings_say_in_full_what_holds_where_nothing_is_set(visit):
    page = visit().page
    for model in ("digits", "spots"):
        page.select_option("#model", model)
        page.click("summary:has-text('Settings')")
        page.wait_for_selector("#fields [name]")
        cut = page.evaluate(
            """() => [...document.querySelectorAll("#fields [name]")].map((field) => {
                const style = getComputedStyle(field);
                const context = document.createElement("canvas").getContext("2d");
                context.font = `${style.fontSize} ${style.fontFamily}`;
                const text = field.options ? field.options[0].text : field.placeholder;
                // The arrow of a list has its place as well.
                const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - (field.options ? 20 : 0);
                return [text, context.measureText(text).width, room, field.title];
            }).filter(([text, width, room, title]) => !text || width > room || !/^as the (model|file) says/.test(title))"""
        )
        assert cut == [], model
        page.click("summary:has-text('Settings')")


def test_the_documents_show_every_operation_and_ask_this_server(visit):
    window = visit("/docs")
    page = window.page
    page.wait_for_selector(".opblock")
    paths = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    operations = sum(method in {"get", "post", "put"} for path in paths.values() for method in path)
    assert page.locator(".opblock").count() == operations
    page.click("#operations-tensors-serverMetadata .opblock-summary-control")
    page.click("#operations-tensors-serverMetadata .try-out__btn")
    page.click("#operations-tensors-serverMetadata .execute")
    page.wait_for_selector("#operations-tensors-serverMetadata .live-responses-table .microlight")
    assert '"name": "ocelli"' in page.inner_text("#operations-tensors-serverMetadata .live-responses-table .microlight")
    window.shot("docs", whole=False)


# What each is asked with: a file where a type has one, else what is there.
OPERATIONS = {
    "images-predict": ["image/*", "multipart/form-data", "application/json"],
    "images-predictPut": ["application/octet-stream"],
    "images-predictVersion": ["image/*"],
    "images-predictVersionPut": ["application/octet-stream"],
    "kserve-v1Predict": [None],
    "kserve-v1VersionPredict": [None],
    "tensors-infer": [None],
    "tensors-inferVersion": [None],
    "control-loadModel": [None],
    "control-cudaRegion": [None],
    "control-unregisterCudaRegion": [None],
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_request_of_the_documents_is_answered_as_it_is_filled_in(visit, operation):
    for media in OPERATIONS[operation]:
        page = visit("/docs").page
        block = page.locator(f"#operations-{operation}")
        # The viewer asks for no token.
        page.set_extra_http_headers({"authorization": f"Bearer {TOKEN}"})
        block.locator(".opblock-summary-control").click()
        block.locator(".try-out__btn").click()
        if media:
            block.locator("select.content-type").first.select_option(media)
        if media in ("image/*", "application/octet-stream", "multipart/form-data"):
            block.locator("input[type=file]").first.set_input_files(IMAGES / "digits" / "3-0.png")
        block.locator(".execute").click()
        reply = block.locator(".live-responses-table")
        told = reply.inner_text()
        assert reply.locator(".response-col_status").last.inner_text().split()[0] == "200", f"{media}: {told}"
        if operation.startswith("images"):
            label = "7" if media == "application/json" else "3"
            assert f'"label": "{label}"' in told.split('"index"')[0], told


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_documents_need_no_mouse_and_can_be_read_aloud(visit, scheme):
    window = visit("/docs", color_scheme=scheme)
    page = window.page
    page.wait_for_selector(".opblock-tag[aria-level='2']")
    # What takes an image, and what takes tensors.
    for which in ("#operations-images-predict", "#operations-tensors-infer"):
        control = page.locator(f"{which} .opblock-summary-control")
        control.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        seen = control.evaluate("e => { const s = getComputedStyle(e); return [s.outlineStyle, parseFloat(s.outlineWidth)]; }")
        assert seen == ["solid", 3], "the focus is seen"
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{which} pre.microlight[tabindex='0']")
    page.wait_for_selector("select[aria-label=mask]")
    assert violations(page, "docs, open") == []
    window.shot(f"docs-{scheme}", whole=False)


def test_documents_are_fetched_and_their_parts_are_kept(site):
    for path in ("/", "/docs"):
        reply = requests.get(site.url + path, headers={"Accept": "text/html"}, timeout=wire.TIMEOUT)
        assert reply.headers["cache-control"] == "no-store" and "etag" not in reply.headers
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    style = requests.get(f"{site.url}/page/style.css", timeout=wire.TIMEOUT)
    assert style.headers["content-type"].startswith("text/css") and style.headers["x-content-type-options"] == "nosniff"
    again = requests.get(f"{site.url}/page/style.css", headers={"If-None-Match": style.headers["etag"]}, timeout=wire.TIMEOUT)
    assert again.status_code == 304 and again.content == b""
    assert requests.get(f"{site.url}/page/..%2f..%2fetc%2fpasswd", timeout=wire.TIMEOUT).status_code == 404
    assert requests.get(f"{site.url}/page/index.html", timeout=wire.TIMEOUT).status_code == 404, "its parts lie elsewhere"
    assert requests.get(f"{site.admin_url}/", timeout=wire.TIMEOUT).status_code == 404, "not on the admin listener"


def test_a_server_without_the_page_has_neither_and_pages_of_others_control_nothing(start_server, only_digits):
    server = start_server(only_digits, page="off", repository_mode="explicit")
    reply = requests.get(f"{server.url}/", headers={"Accept": "text/html"}, timeout=wire.TIMEOUT)
    assert reply.json() == {"status": "alive"}
    for path in ("/docs", "/page/style.css"):
        assert requests.get(server.url + path, timeout=wire.TIMEOUT).status_code == 404, path
    url = f"{server.url}/v2/repository/models/digits/unload"
    own = server.url.removeprefix("http://")
    for headers, told in (
        ({"Origin": "http://evil.example"}, "page of another server"),
        ({"Origin": "null"}, "page of another server"),
        # A name that its owner points here.
        ({"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}, "by an address"),
    ):
        for base in (url, url.replace(server.url, server.admin_url)):
            reply = requests.post(base, headers=headers, timeout=wire.TIMEOUT)
            assert reply.status_code == 403 and told in reply.json()["error"], reply.text
    assert server.status("/v2/models/digits/ready") == 200
    assert requests.post(url, headers={"Origin": f"http://{own}"}, timeout=wire.TIMEOUT).status_code == 200
    server.kill()


def test_the_picture_of_the_readme_is_of_this_page(visit):
    window = visit(viewport={"width": 1200, "height": 1020})
    window.page.click("[data-example='digits.png']")
    page = window.answered()
    page.click("summary:has-text('The same from your code')")
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")
    window.shot("readme", whole=False)
    if os.environ.get("OCELLI_BLESS") == "1":
        shutil.copy(SHOTS / "readme.png", PICTURE)
    assert PICTURE.stat().st_size < PICTURE_BYTES_MAX
    assert "docs/images/page.png" in (ROOT / "README.md").read_text()
