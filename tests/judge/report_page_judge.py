"""Judges the page of `gradtile report` in Chromium, without a display.

usage: report_page_judge.py GRADTILE DIRECTORY    (scripts/judge.sh calls it when there is a Chromium; screenshots go to DIRECTORY)

The page must load without an error and without a request to any network, draw every curve by step, tokens and time, show the values of
metrics.jsonl under the cursor, obey the keyboard, show hostile names as text, follow the browser's color scheme, and fit a phone of 360 px.
"""
import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from gradtile_runs import run

LIGHT, DARK = "rgb(251, 250, 247)", "rgb(20, 24, 29)"
HOSTILE = "<img src=x onerror=alert(1)><!--<script>"


def require(condition, *message):
    if not condition:
        raise SystemExit("report_page_judge: " + " ".join(map(str, message)))


def make_runs(gradtile, directory):
    text = directory / "text.txt"
    run(gradtile, "corpus", "--characters", "20000", "--out", text)
    runs = []
    for name, rate in (("fast", "0.003"), (HOSTILE, "0.0003")):
        runs.append(directory / name)
        run(gradtile, "train", "--data", text, "--out", runs[-1], "--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--batch", "8",
            "--steps", "200", "--eval-every", "40", "--warmup", "5", "--lr", rate, "--sample-every", "80", "--sample-prompt", HOSTILE if name == "fast" else "One day", "--tokenizer", "bytes", "--device", "cpu", "--threads", "1", "--quiet")
    return runs


def judge(browser, page_file, runs, directory):
    problems = []
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if "event" not in line]
    samples = [line for line in lines if line.get("event") == "sample"]

    def opened(fragment="", scheme="light", width=1200):
        page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(f"request: {request.url}"))
        page.goto(page_file.as_uri() + fragment)
        return page

    page = opened()
    values = lambda: page.inner_text("#values")
    require(page.locator("#runs button").all_inner_texts() == ["fast", HOSTILE], "names:", page.locator("#runs button").all_inner_texts())
    cells = page.eval_on_selector_all("#samples tbody tr", "all => all.map(row => [...row.children].map(cell => cell.textContent))")
    require([row[0] for row in cells] == ["80", "160", "200"], "steps of samples:", [row[0] for row in cells])
    # Control characters are escaped, and all other characters of a text are shown unchanged.
    escaped = lambda text: "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text)
    for sample, row in zip(samples, cells):
        shown = row[1]
        require(shown.startswith(HOSTILE) and sample["prompt"] == HOSTILE, "a sample shows", shown)
        if escaped(sample["text"]) == sample["text"] and "\ufffd" not in sample["text"]:
            require(shown == HOSTILE + sample["text"], "a sample shows", repr(shown), "and not", repr(sample["text"]))
    curves, axes = ([option for option in page.eval_on_selector_all(f"{select} option", "all => all.map(o => o.value)")] for select in ("#y", "#x"))
    for curve in curves:
        for axis in axes:
            page.select_option("#y", curve)
            page.select_option("#x", axis)
            for index in range(2):
                paths = page.eval_on_selector_all(f"path[data-run='{index}']", "all => all.map(p => p.getAttribute('d'))")
                require(paths and all(len(path) > 10 and "NaN" not in path for path in paths), curve, axis, "is not drawn")
            require(f"y={curve}&x={axis}" in page.url, curve, axis, "is not in the address")
    page = opened("#y=train&x=step")
    page.focus("#chart")
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("Shift+ArrowRight", 12), ("ArrowLeft", 11), ("End", 200), ("Home", 1)):
        page.keyboard.press(key)
        require(f"step {step}\n" in values(), key, "leads to", values())
        shown = float(values().split("fast: ")[1].split()[0])
        require(abs(shown - metrics[step - 1]["loss"]) < 1e-4 * shown, "step", step, "shows", shown, "and not", metrics[step - 1]["loss"])
    box = page.locator("#chart svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2)
    require("step 1\n" not in values() and "fast: " in values(), "hovering shows", values())
    page.keyboard.press("2")
    require("<img" not in values() and "hidden=2" in page.url, "2 does not hide the second run")
    for key, part in (("y", "y=val_loss"), ("x", "x=tokens"), ("l", "log=1")):
        page.keyboard.press(key)
        require(part in page.url, key, "leads to", page.url)
    for hostile in ("#y=constructor&x=__proto__", "#hidden=1,2", "#%ff&&&==", "#hidden=-1,1e9,x&log=<b>"):
        opened(hostile)
    for name, scheme, width, color in (("light", "light", 1200, LIGHT), ("dark", "dark", 1200, DARK), ("phone", "light", 360, LIGHT)):
        page = opened("", scheme, width)
        require(page.evaluate("getComputedStyle(document.body).backgroundColor") == color, name, "has another background")
        require(page.evaluate("document.documentElement.scrollWidth") <= width, name, "is wider than", width)
        page.screenshot(path=directory / f"{name}.png", full_page=True)
    require(not problems, *problems[:5])
    return len(curves) * len(axes)


def judge_largest_numbers(browser, gradtile, directory):
    """Steps so large that adding 1 changes nothing, and losses whose difference overflows, must not keep the page from being drawn."""
    large = directory / "large"
    large.mkdir()
    (large / "metrics.jsonl").write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in ((2**53 - 2, -1e308), (2**53, 1e308))))
    (large / "config.json").write_text("{}")
    run(gradtile, "report", large, "--out", directory / "large.html")
    page = browser.new_page()
    page.goto((directory / "large.html").as_uri())  # fails after 30 s
    labels = page.eval_on_selector_all("#chart svg text", "all => all.map(text => text.textContent)")
    require(labels and not any("NaN" in label for label in labels), "large numbers have the labels", labels)


def main():
    gradtile, directory = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    runs = make_runs(gradtile, directory)
    page_file = directory / "report.html"
    run(gradtile, "report", *runs, "--out", page_file)
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, as in containers. The page is ours.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"])
        views = judge(browser, page_file, runs, directory)
        judge_largest_numbers(browser, gradtile, directory)
        browser.close()
    print(f"report_page_judge: {views} views are drawn; cursor, keyboard, links, hostile names, color schemes and 360 px work")


main()
