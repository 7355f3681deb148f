"""The page of `tfvmf explore` in a real browser: Debian's chromium, driven by Selenium."""

import csv
import pathlib
import shutil
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.embedded import write_embedded

from tfvmf.selection.explore import explore

pytestmark = pytest.mark.slow
PATIENCE = 60.0  # seconds, on a busy machine


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path, columns = write_embedded(tmp_path_factory.mktemp("table"), 300)
    return explore(path, threshold=0.999).page, columns


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("needs a browser: apt install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs pip install selenium")
    downloads = tmp_path_factory.mktemp("downloads")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for each in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{each}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.downloads = downloads
    yield driver
    driver.quit()


def wait(found, what):
    end = time.monotonic() + PATIENCE
    while not (result := found()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return result


@pytest.fixture
def page(browser, table):
    resize(browser, 1300, 950)
    browser.get(table[0].as_uri())
    wait(lambda: browser.execute_script("return document.body.dataset.ready"), "not ready")
    yield browser
    severe = [e for e in browser.get_log("browser") if "favicon" not in e["message"]]
    assert severe == []  # neither errors nor what the policy refused


def resize(browser, width, height):
    shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)


def text(page, name):
    return page.find_element("id", name).get_attribute("textContent")


def number(page, name):
    return float(text(page, name).replace(",", "").removesuffix(" %"))


def choose(page, name, value):
    page.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('change'))", name, value,
    )  # fmt: skip


def shots(page):
    script = "return [...document.querySelectorAll('#gallery .shot')].map((e) => +e.dataset.row)"
    return page.execute_script(script)


def places(page):
    """Where images are on the screen, beside the map's own corner."""
    script = "return ROWS.map((row) => [px(row), py(row)])"
    return np.array(page.execute_script(script))


def drag(page, points, *, shift=False):
    """Moves the mouse along points of the map with its button pressed."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    canvas = page.find_element("id", "canvas")
    corner = np.array([canvas.size["width"] // 2, canvas.size["height"] // 2])
    points = np.round(points - corner).astype(int).tolist()
    actions = ActionChains(page, duration=20)
    actions = actions.key_down(Keys.SHIFT) if shift else actions
    actions.move_to_element_with_offset(canvas, *points[0]).click_and_hold()
    for point in points[1:]:
        actions.move_to_element_with_offset(canvas, *point)
    actions.release()
    actions = actions.key_up(Keys.SHIFT) if shift else actions
    actions.perform()


def test_the_slider_counts_as_numpy_does(page, table):
    from selenium.webdriver.common.keys import Keys

    columns = table[1]
    slider = page.find_element("id", "alpha")
    right = columns["class"] == columns["label"]
    seen = set()
    for moves in ((), [Keys.ARROW_RIGHT] * 4, [Keys.PAGE_UP] * 2, [Keys.END], [Keys.HOME]):
        if moves:
            slider.send_keys(*moves)
        alpha = float(slider.get_attribute("value"))
        accept = columns["confidence"].astype(np.float64).round(6) > alpha
        assert number(page, "accepted") == accept.sum()
        assert number(page, "rejected") == (~accept).sum()
        assert f"{100 * accept.mean():.1f} %" in text(page, "accepted_share")
        if accept.any():
            assert number(page, "accuracy") == pytest.approx(100 * right[accept].mean(), abs=0.051)
        else:
            assert text(page, "accuracy") == "\u2013"
        assert number(page, "accuracy_all") == pytest.approx(100 * right.mean(), abs=0.051)
        seen.add(alpha)
    assert {0.0, 0.05, 0.07, 1.0} <= seen


def test_sorting_and_filtering_as_numpy_does(page, table):
    columns = table[1]
    for name in ("concentration", "familiarity", "confidence", "class_probability"):
        choose(page, "sort", name)
        assert columns[name][shots(page)] == pytest.approx(np.sort(columns[name])[:60])
        page.find_element("id", "direction").click()
        assert columns[name][shots(page)] == pytest.approx(-np.sort(-columns[name])[:60])
        page.find_element("id", "direction").click()
        low, high = np.quantile(columns[name], [0.3, 0.6]).round(3).tolist()
        choose(page, f"lowest_{name}", str(low))
        choose(page, f"highest_{name}", str(high))
        inside = (columns[name] >= low) & (columns[name] <= high)
        assert text(page, "shown").startswith(f"{inside.sum()} of {len(inside)} ")
        assert number(page, "accepted") == (columns["confidence"][inside] > 0.051).sum()
        assert columns[name][shots(page)] == pytest.approx(np.sort(columns[name][inside])[:60])
        page.find_element("id", "unfilter").click()
    wrong = columns["class"] != columns["label"]
    choose(page, "filter_correct", "wrong")
    assert sorted(shots(page)) == np.flatnonzero(wrong)[: len(shots(page))].tolist()
    assert text(page, "shown").startswith(f"{wrong.sum()} of ")
    choose(page, "color", "decision")
    page.find_element("css selector", "#legend button:last-of-type").click()  # rejected
    both = wrong & (columns["confidence"] < 0.051)
    assert text(page, "shown").startswith(f"{both.sum()} of ")


@pytest.mark.parametrize("shift", [True, False])
def test_a_lasso_makes_a_list_that_is_saved(page, table, shift):
    columns = table[1]
    place = places(page)
    center = np.median(place, axis=0)
    near = np.argsort(np.linalg.norm(place - center, axis=1))[:100]
    center = place[near[0]]
    angles = np.linspace(0, 2 * np.pi, 14)[:-1]
    ring = np.round(center + 60 * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    if not shift:
        page.find_element("id", "lasso").click()
    drag(page, ring, shift=shift)
    # Independent of the page's test: inside a convex ring is left of all of its edges.
    edges = np.roll(ring, -1, axis=0) - ring
    offsets = place[:, None] - ring
    side = edges[:, 0] * offsets[:, :, 1] - edges[:, 1] * offsets[:, :, 0]
    inside = np.flatnonzero((side > 0).all(axis=1))
    assert len(inside) > 2
    assert text(page, "listed") == f"{len(inside)} on the list"
    page.find_element("css selector", "[data-tab=list]").click()
    assert sorted(shots(page)) == inside.tolist()[:60]
    for old in page.downloads.iterdir():
        old.unlink()
    page.find_element("id", "save").click()
    saved = wait(lambda: list(page.downloads.glob("*.csv")), "nothing was saved")[0]
    assert saved.name == "table-list.csv"
    with saved.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == columns["file"][inside].tolist()
    assert [row["label"] for row in rows] == columns["label"][inside].tolist()
    kappas = [float(row["concentration"]) for row in rows]
    assert kappas == pytest.approx(columns["concentration"][inside])
    accept = [row["accept"] == "true" for row in rows]
    assert accept == columns["accept"][inside].tolist()
    page.find_element("id", "clear").click()
    assert text(page, "listed") == ""


def test_keyboard_click_and_neighbors(page, table):
    from selenium.webdriver.common.keys import Keys

    columns = table[1]
    canvas = page.find_element("id", "canvas")
    place = places(page)
    drag(page, [place[40]])  # pressed and released at one place: a click
    first = page.execute_script("return state.current")
    assert np.linalg.norm(place[first] - place[40]) < 2
    assert text(page, "file") == pathlib.Path(columns["file"][first]).name
    cosines = columns["mean_direction"] @ columns["mean_direction"][first]
    cosines[first] = -2
    near = "return [...document.querySelectorAll('#near .shot')].map((e) => +e.dataset.row)"
    assert cosines[page.execute_script(near)] == pytest.approx(-np.sort(-cosines)[:12], abs=1e-5)
    page.find_element("css selector", "#near .shot").click()
    assert page.execute_script("return state.current") == cosines.argmax()
    before = places(page)[page.execute_script("return state.current")]
    canvas.send_keys(Keys.ARROW_LEFT)
    after = places(page)[page.execute_script("return state.current")]
    assert after[0] < before[0]
    canvas.send_keys("s")
    assert text(page, "listed") == "1 on the list"
    canvas.send_keys("+++++++")
    assert page.execute_script("return view.k") == pytest.approx(1.4**7)
    wait(lambda: page.execute_script("return drawn"), "no pictures on the map")
    canvas.send_keys("0v")
    assert text(page, "listed") == f"{len(columns['file'])} on the list"
    canvas.send_keys(Keys.ESCAPE)
    assert text(page, "listed") == ""


def test_hovering_shows_picture_and_name_as_text(page, table):
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = page.find_element("id", "canvas")
    row = 5  # its name is full of markup
    x, y = places(page)[row] - [canvas.size["width"] // 2, canvas.size["height"] // 2]
    ActionChains(page).move_to_element_with_offset(canvas, round(x), round(y)).perform()
    tip = page.find_element("id", "tip")
    assert tip.is_displayed()
    shown = page.execute_script("return state.hover")
    assert pathlib.Path(table[1]["file"][shown]).name in tip.text
    width = "return document.querySelector('#tip img').naturalWidth"
    wait(lambda: page.execute_script(width) == 20, "no picture")
    choose(page, "filter_text", "")
    search = page.find_element("id", "filter_text")
    search.send_keys("script")
    assert shots(page) == [5]
    found = page.find_element("css selector", "#gallery .shot")
    assert found.get_attribute("title") == table[1]["file"][5]
    found.click()
    assert "</script><script>alert(1)</script>" in page.find_element("id", "entries").text
    assert page.execute_script("return document.querySelectorAll('#gallery script').length") == 0


def test_a_narrow_screen_needs_no_scrolling_sideways(page):
    resize(page, 500, 900)
    page.find_element("css selector", "[data-tab=duplicates]").click()
    groups = page.find_elements("css selector", ".group")
    assert [len(each.find_elements("css selector", ".shot")) for each in groups] == [3, 2]
    assert page.execute_script("return innerWidth") == 500
    assert page.execute_script("return document.documentElement.scrollWidth") <= 500
    # Every control has a name for those who do not see it.
    script = (
        "return [...document.querySelectorAll('button, select, input')].filter((e) => !e.hidden && "
        "!(e.textContent.trim() || e.ariaLabel || e.labels && e.labels.length)).map((e) => e.id)"
    )
    assert page.execute_script(script) == []


def test_numbers_are_not_wrong_names(browser, tmp_path):
    """Labels 0 and 1 of data without class names say nothing of the classes cat and dog."""
    path, _ = write_embedded(tmp_path, 30)
    for labels, compared in ((["0", "1"] * 15, False), (["cat", "7"] * 15, True)):
        found = pq.read_table(path)
        place = found.schema.get_field_index("label")
        pq.write_table(found.set_column(place, "label", [labels]), path)
        browser.get(explore(path, tmp_path / "page.html").page.as_uri())
        wait(lambda: browser.execute_script("return document.body.dataset.ready"), "not ready")
        assert browser.find_element("id", "accuracy_tile").is_displayed() == compared
        assert bool(browser.find_elements("css selector", ".wrong")) == compared


def test_a_folder_shows_its_thumbnails(browser, tmp_path):
    path, _ = write_embedded(tmp_path, 30)
    done = explore(path, tmp_path / "folder")
    browser.get(done.page.as_uri())
    wait(lambda: browser.execute_script("return document.body.dataset.ready"), "not ready")
    loaded = (
        "const all = [...document.querySelectorAll('#gallery img')];"
        "return all.length > 20 && all.filter((e) => e.complete && e.naturalWidth === 20).length"
    )
    assert wait(lambda: browser.execute_script(loaded), "no thumbnails") > 5
    assert browser.get_log("browser") == []
