"""Judges the page of `gradtile lab --html` in Chromium, without a display.

usage: lab_page_judge.py GRADTILE DIRECTORY    (scripts/judge.sh calls it when there is a Chromium; screenshots go to DIRECTORY)

The page must load without an error and without a request to any network, step through every pass to its end with counters that equal the
program's --json, play, obey the keyboard, restore a linked view, follow the browser's color scheme, and fit a phone of 360 px.
"""
import json
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZES = ["--length", "40", "--head-dim", "16", "--fast-memory", "4096"]
LIGHT, DARK = "rgb(251, 250, 247)", "rgb(20, 24, 29)"


def run(*command):
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {finished.returncode}: {finished.stderr}")
    return finished.stdout


def require(condition, *message):
    if not condition:
        raise SystemExit("lab_page_judge: " + " ".join(map(str, message)))


class Judge:
    def __init__(self, browser, page_file, directory):
        self.browser, self.address, self.directory = browser, page_file.as_uri(), directory
        self.problems = []

    def open(self, fragment="", scheme="light", width=1200, height=1000):
        context = self.browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        page = context.new_page()
        page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or self.problems.append(f"request: {request.url}"))
        page.goto(self.address + fragment)
        return page

    @staticmethod
    def counters(page):
        return [int(page.get_attribute(f"#{name}", "data-value")) for name in ("loads", "stores", "bytes", "fast")]

    @staticmethod
    def wait_until(page, condition, expression):
        """Waits at most 30 s. The page forbids eval, which playwright's own waiting needs."""
        for _ in range(300):
            if page.evaluate(expression):
                return
            page.wait_for_timeout(100)
        raise SystemExit(f"lab_page_judge: {condition}")

    @staticmethod
    def position(page):
        return int(page.eval_on_selector("#step", "slider => slider.value"))

    def passes_end_with_the_counts_of_the_program(self, expected):
        page = self.open()
        for row in expected:
            name = f"{row['name']} {row['pass']}"
            page.click(f"#algorithms button[data-value={row['name']}]")
            page.click(f"#passes button[data-value={row['pass']}]")
            steps = int(page.get_attribute("#step", "max"))
            require(steps > 20, name, "has", steps, "steps")
            require(self.counters(page)[:3] == [0, 0, 0], name, "does not begin at 0")
            # Goes through every step with the page's button. One call does this, because a call for each step takes
            # long.
            checks = page.evaluate("""() => {
                let largest = 0, wrong = [], last = 0;
                while (Number(document.getElementById("step").value) < Number(document.getElementById("step").max)) {
                    document.getElementById("forward").click();
                    const step = Number(document.getElementById("step").value);
                    if (step !== last + 1) throw new Error(`step ${step} after ${last}`);
                    last = step;
                    largest = Math.max(largest, Number(document.getElementById("fast").dataset.value));
                    const line = document.querySelector("#code .current"), action = document.getElementById("action").textContent;
                    const word = {Load: "load(", Store: "store("}[action.split(" ")[0]];
                    if (!line || (word && !line.textContent.includes(word)) || !action) wrong.push(`${step}: ${action}: ${line && line.textContent}`);
                }
                return {largest, wrong};
            }""")
            require(not checks["wrong"], name, "shows wrong lines:", checks["wrong"][:3])
            require(self.position(page) == steps, name, "ends at", self.position(page))
            loads, stores, slow_bytes, _ = self.counters(page)
            require((loads, stores, slow_bytes) == (row["loads"], row["stores"], row["slow_bytes"]), name, "ends with", loads, stores, slow_bytes,
                    "and the program counted", row["loads"], row["stores"], row["slow_bytes"])
            require(checks["largest"] == row["peak_fast_bytes"], name, "used", checks["largest"], "bytes of", row["peak_fast_bytes"])
            page.click("#back")
            require(self.position(page) == steps - 1, name, "does not step back")
            page.click("#first")
            require(self.counters(page)[:3] == [0, 0, 0], name, "does not return to 0")
        page.context.close()

    def keyboard_works(self):
        page = self.open("#algorithm=naive&pass=forward&step=10&speed=500&row=0")
        press = page.keyboard.press
        for key, expected in [("ArrowRight", 11), ("ArrowLeft", 10), ("Shift+ArrowRight", 35), ("Home", 0), ("ArrowLeft", 0)]:
            press(key)
            require(self.position(page) == expected, key, "leads to step", self.position(page), "and not to", expected)
        press("End")
        require(self.position(page) == int(page.get_attribute("#step", "max")), "End does not lead to the last step")
        press("3")
        press("b")
        require("algorithm=flash1&pass=backward&step=0" in page.url, "3 and B lead to", page.url)
        press("-")
        require("speed=100" in page.url, "- leads to", page.url)
        press("+")
        theme = page.get_attribute("html", "data-theme")
        press("t")
        require(page.get_attribute("html", "data-theme") != theme, "T does not change the theme")
        press(" ")
        self.wait_until(page, "space does not play", "Number(document.getElementById('step').value) > 20")
        press(" ")
        stopped = self.position(page)
        page.wait_for_timeout(200)
        require(self.position(page) == stopped, "space does not pause")
        press(" ")
        self.wait_until(page, "playing does not reach the end", "document.getElementById('step').value === document.getElementById('step').max")
        self.wait_until(page, "playing does not stop at the end", "document.getElementById('play').textContent.includes('Play')")
        # Every control can be reached with Tab, and Enter presses the focused one.
        page.focus("#theme")
        focused = []
        for _ in range(14):
            press("Tab")
            focused.append(page.evaluate("document.activeElement.id || document.activeElement.dataset.value"))
        for control in ("flash1", "backward", "first", "back", "play", "forward", "last", "speed", "step", "row", "code"):
            require(control in focused, "Tab does not reach", control, "but", focused)
        page.focus("#first")
        press("Enter")
        require(self.position(page) == 0, "Enter does not press a button")
        page.focus("#algorithms button[aria-checked=true]")
        press("ArrowRight")
        require("algorithm=flash2" in page.url, "an arrow key does not choose the next algorithm")
        page.context.close()

    def links_restore_the_view(self):
        fragment = "#algorithm=flash1&pass=forward&step=77&speed=25&row=9"
        page = self.open(fragment)
        require(self.position(page) == 77 and page.input_value("#speed") == "25" and page.input_value("#row") == "9", "the link", fragment, "is not restored")
        require(page.get_attribute("#algorithms [aria-checked=true]", "data-value") == "flash1", "another algorithm")
        counters = self.counters(page)
        page.click("#forward")
        other = self.open(page.url[page.url.index("#"):])
        require(self.position(other) == 78 and self.counters(other) == self.counters(page), "the address does not hold the view")
        page.click("#back")
        require(self.counters(page) == counters, "a step back does not restore the counters")
        for hostile in ("#step=999999999", "#step=-1&row=1e9&speed=7&algorithm=constructor&pass=x", "#%ff&&&==", "#step=<b>&row=NaN"):
            broken = self.open(hostile)
            require(0 <= self.position(broken) <= int(broken.get_attribute("#step", "max")), hostile)
            broken.context.close()
        page.context.close()
        other.context.close()

    def schemes_and_sizes(self):
        for name, scheme, width, color in (("light", "light", 1200, LIGHT), ("dark", "dark", 1200, DARK), ("phone", "light", 360, LIGHT)):
            for algorithm, step in (("naive", 150), ("flash2", 60)):
                page = self.open(f"#algorithm={algorithm}&pass=forward&step={step}", scheme, width, 740)
                require(page.evaluate("getComputedStyle(document.body).backgroundColor") == color, name, "has another background")
                require(page.evaluate("document.documentElement.scrollWidth") <= width, name, "is wider than", width)
                page.screenshot(path=self.directory / f"{name}_{algorithm}.png", full_page=True)
                page.context.close()


def main():
    gradtile, directory = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    page_file = directory / "lab.html"
    run(gradtile, "lab", "--html", page_file, *SIZES)
    expected = json.loads(run(gradtile, "lab", "--json", *SIZES))["algorithms"]
    browser_file = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, as in containers. The page is ours.
        browser = playwright.chromium.launch(executable_path=browser_file, args=["--no-sandbox"])
        judge = Judge(browser, page_file, directory)
        judge.passes_end_with_the_counts_of_the_program(expected)
        judge.keyboard_works()
        judge.links_restore_the_view()
        judge.schemes_and_sizes()
        browser.close()
    require(not judge.problems, *judge.problems[:5])
    print(f"lab_page_judge: {len(expected)} passes end with the program's counts; keyboard, links, color schemes and 360 px work")


main()
