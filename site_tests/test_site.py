"""The built site in a browser: requests, widths, contrast, search, and clicks from the start page to a task.

``CHROMIUM=/usr/bin/chromium python -m pytest site_tests``, after ``python -m website``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOOKS = (Path(__file__).parent / "looks.js").read_text()
PAGES = (
    "", "start/", "concepts/", "your_environment/", "images/", "guide/", "troubleshooting/",
    "glossary/", "parity/", "host_environments/", "measured/",
    "algorithms/ppo/", "settings/all/", "reference/modules/", "map/", "changelog/",
)  # fmt: skip
TERMS = {
    "lr schedule": "troubleshooting/", "frame stack": "images/", "resume": "troubleshooting/",
    "ONNX": "troubleshooting/", "hyperparameter": "questions/", "vectorized": "troubleshooting/",
    "reproducible": "troubleshooting/", "early stopping": "troubleshooting/",
}  # fmt: skip
QUERIES = {
    "how do I save the best model": "questions/#how-do-i-save-the-best-model",
    "why is my agent not learning": "questions/#why-is-my-agent-not-learning",
    "hyperparameter tuning": "questions/#how-do-i-tune-hyperparameters",
    "save model": "questions/#how-do-i-save-and-load-a-model",
    "custom network": "questions/#how-do-i-use-a-custom-network",
    "reward scaling": "questions/#how-do-i-scale-or-normalize-rewards",
    "multi gpu": "questions/#how-do-i-use-a-gpu",
    "resume training": "questions/#how-do-i-resume-training",
    "train on my own gym environment": "questions/#how-do-i-use-my-own",
    "action masking": "questions/#how-do-i-mask-invalid-actions",
    "tensorboard": "questions/#how-do-i-log-to-tensorboard",
    "early stopping": "questions/#how-do-i-stop-training-early",
    "nan loss": "questions/#why-is-my-loss-nan",
    "self-play": "questions/#how-do-i-train-with-self-play",
    "imitation learning": "questions/#how-do-i-learn-from-recorded-data",
    "deploy policy": "questions/#how-do-i-deploy",
    "record video": "questions/#how-do-i-record-a-video",
    "cuda out of memory": "accelerators/#memory",
    "plot learning curves": "curves/",
    "several seeds": "curves/#several-seeds",
    "frame stacking": "images/#a-frame-stack",
    "PPO settings": "algorithms/ppo/",
    "migrate from rllib": "questions/#how-do-i-move",
    "evalaute a polciy": "questions/#how-do-i-evaluate",
}
"""Query of a user → beginning of the address that the search shows first."""
UNSEEN_QUERIES = {
    "resume training with replay buffer": ("checkpoints/", "questions/#how-do-i-resume-training"),
    "time limit truncation bootstrap": ("your_environment/", "questions/#what-is-the-difference-between-terminated"),
    "sac with lstm": ("memory/", "questions/#how-do-i-add-an-lstm"),
    "invalid action masking dqn": ("networks/", "questions/#how-do-i-mask-invalid-actions"),
    "train on multiple nodes slurm": ("several_processes/", "questions/#how-do-i-use-several-machines"),
    "population based training": ("tuning/", "populations/", "questions/#how-do-i-train-many-agents-or-seeds"),
    "decay the learning rate during training": ("troubleshooting/", "questions/#how-do-i-set-a-learning-rate-schedule"),
    "save the best model": ("progress/", "questions/#how-do-i-save-the-best-model"),
    "loaded policy much worse than in training": ("serving/", "questions/#why-is-my-loaded-policy-worse"),
    "same seed gives different results": ("troubleshooting/", "questions/#why-does-the-same-seed-give-different"),
    "replay buffer of images does not fit in memory": ("images/", "questions/#why-does-it-run-out-of-memory"),
    "rainbow noisy nets": ("algorithms/dqn/", "questions/#how-do-i-train-rainbow"),
    "EOFError environment subprocess died": (
        "host_environments/",
        "questions/#what-happens-when-an-environment-crashes",
    ),
    "self play against a frozen opponent": ("multi_agent/", "questions/#how-do-i-train-with-self-play"),
    "write a custom environment in jax": ("your_environment/", "questions/#how-do-i-use-my-own"),
    "imitation learning from demonstrations": ("offline/", "questions/#how-do-i-learn-from-recorded-data"),
    "loss becomes nan": ("troubleshooting/", "questions/#why-is-my-loss-nan"),
    "make a video of the trained agent": ("videos/", "questions/#how-do-i-record-a-video"),
    "how old are the weights that sampled": ("asynchronous/",),
    "compare two algorithms over several seeds": ("curves/", "questions/#how-many-seeds-do-i-need"),
}
"""The same for queries of a reader who had not seen the page of questions: the page that this reader expected, or the
question that answers the query and leads there."""
# Links or tabs to click, one after the other, from the start page; then a text that the last page shows.
TASKS = {
    "train on an own gymnasium environment": (["Your environment", "gymnasium"], "class Corridor(gym.Env)"),
    "add an LSTM": (["Memory"], "use_lstm=True"),
    "two agents": (["Several agents"], "policy_mapping_fn"),
    "sweep over lr": (["A sweep over settings"], "run_sweep(config"),
    "serve a checkpoint": (["Serving"], "Policy.from_checkpoint"),
}


def open_page(browser, width: int, scheme: str, address: str):
    """A page of a fresh context, with lists of requests to elsewhere and errors of its console."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    elsewhere, errors = [], []

    def on_request(request):
        if not request.url.startswith((address, "data:", "blob:")):
            elsewhere.append(request.url)

    def on_console(message):
        if message.type == "error":
            errors.append(message.text)

    page.on("request", on_request)
    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return context, page, elsewhere, errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 900, 1400])
def test_pages_fit_can_be_read_and_request_nothing_from_elsewhere(browser, address, width, scheme):
    context, page, elsewhere, errors = open_page(browser, width, scheme, address)
    found = []
    for place in PAGES:
        page.goto(address + place, wait_until="networkidle")
        dark = page.evaluate("document.body.dataset.mdColorScheme")
        assert dark == ("slate" if scheme == "dark" else "default")
        looks = page.evaluate(LOOKS)
        found += [f"{place}: wider than the page: {text}" for text in looks["wide"]]
        found += [f"{place}: contrast: {text}" for text in looks["faint"]]
    context.close()
    assert not found, "\n".join(found)
    assert not elsewhere and not errors, (elsewhere, errors)


@pytest.mark.parametrize("term", TERMS)
def test_search_finds(browser, address, term):
    context, page, _, errors = open_page(browser, 1400, "light", address)
    page.goto(address, wait_until="networkidle")
    targets = search(page, term)
    context.close()
    assert any(TERMS[term] in target for target in targets), targets
    assert not errors


def test_queries_of_users_have_the_right_page_first(browser, address):
    context, page, _, errors = open_page(browser, 1400, "light", address)
    page.goto(address, wait_until="networkidle")
    wrong = {}
    for query, expected in (QUERIES | UNSEEN_QUERIES).items():
        targets = search(page, query)
        first = re.sub(r"\?h=[^#]*", "", targets[0]).removeprefix(address) if targets else "nothing"
        if not first.startswith(expected):
            wrong[query] = first
        page.keyboard.press("Control+A")
    context.close()
    assert not wrong, wrong
    assert not errors


FOCUSED = """() => {
    let at = document.activeElement;
    while (at && at.shadowRoot && at.shadowRoot.activeElement) at = at.shadowRoot.activeElement;
    return at && at.tagName === "INPUT" ? (at.value || " ") : "";
}"""
SHOWN = """() => {
    const roots = [document, ...[...document.querySelectorAll("*")].map((e) => e.shadowRoot).filter(Boolean)];
    return roots.flatMap((root) => [...root.querySelectorAll(".md-search a, [role=search] a, ol a, dialog a")])
        .filter((a) => a.checkVisibility() && a.href.includes("?h=")).map((a) => a.href);
}"""


def search(page, term: str) -> list[str]:
    """Addresses that the search shows for a term; none after 20 seconds without any."""
    page.wait_for_timeout(500)
    for _ in range(40):  # the key is heard once the page's script has started
        if page.evaluate(FOCUSED):
            break
        page.keyboard.press("/")
        page.wait_for_timeout(500)
    page.keyboard.type(term)
    assert page.evaluate(FOCUSED).strip("/") == term
    found: list[str] = []
    for _ in range(40):
        page.wait_for_timeout(500)
        before, found = found, page.evaluate(SHOWN)
        if found and found == before:
            break
    return found


@pytest.mark.parametrize("task", TASKS)
def test_a_newcomers_task_is_three_clicks_away(browser, address, task):
    links, shown = TASKS[task]
    context, page, _, _ = open_page(browser, 1400, "light", address)
    page.goto(address, wait_until="networkidle")
    for link in links:
        content = page.locator(".md-content")
        link_or_tab = content.get_by_role("link", name=link, exact=True).or_(content.locator("label", has_text=link))
        link_or_tab.first.click()
    page.wait_for_load_state("networkidle")
    text = page.locator(".md-content").inner_text()
    context.close()
    assert len(links) <= 3 and shown in text


def test_a_tab_changes_all_blocks_of_its_name(browser, address):
    context, page, _, errors = open_page(browser, 1400, "light", address)
    page.goto(f"{address}your_environment/", wait_until="networkidle")
    content = page.locator(".md-content")
    assert "class JaxCorridor" in content.inner_text() and "class Corridor(gym.Env)" not in content.inner_text()
    content.locator("label", has_text="gymnasium").first.click()
    page.wait_for_timeout(500)
    text = content.inner_text()
    context.close()
    assert "class Corridor(gym.Env)" in text and "check_env(Corridor" in text and "check_jax_env" not in text
    assert not errors
