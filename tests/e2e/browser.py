"""Draws pages in a browser, if the machine has one."""
import json
import re
import shutil
import subprocess
import tempfile

from runner import MISSING

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser():
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


MISSING["browser"] = lambda: (
    "" if browser() else f"no browser: none of {', '.join(BROWSERS)} is installed")


def page_data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>',
                                page.read_text(), re.S).group(1))


def require_self_contained(page):
    """Asserts that a page loads no other file."""
    own = re.sub(r'<script type="application/json" id="data">.*?</script>', "", page.read_text(),
                 flags=re.S)
    match = re.search(r'(src|href)=|https?://(?!www\.w3\.org/2000/svg)|fetch\(|import '
                      r'|url\((?!#)', own)
    assert not match, own[match.start() - 100:match.end() + 100]


def dom(page, script="", width=1200):
    """Returns the page's elements after it was drawn and `script` has run in it."""
    probe = page.with_name("probe.html")
    probe.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    with tempfile.TemporaryDirectory() as profile:
        drawn = subprocess.run([browser(), "--headless", "--no-sandbox", "--disable-gpu",
                                "--disable-dev-shm-usage", "--no-first-run",
                                f"--user-data-dir={profile}", f"--window-size={width},900",
                                "--dump-dom", probe.as_uri()],
                               capture_output=True, text=True, timeout=110)
    assert drawn.returncode == 0 and "</html>" in drawn.stdout, drawn.stderr[-2000:]
    return drawn.stdout


def body_data(drawn):
    """Returns what a script has written into data attributes of the body, by name."""
    return dict(re.findall(r'data-(\w+)="([^"]*)"',
                           re.search(r"<body[^>]*>", drawn).group(0)))
