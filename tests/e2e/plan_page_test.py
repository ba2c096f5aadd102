"""Tests `ftrun plan --html`: one page with the time, the memory and the lanes of a predicted step.
The page loads nothing else, shows names that look like markup as text, has a bounded size for the
largest plans, and never replaces another file. A browser draws it if there is one."""
import json
import os
import pathlib
import re
import sys
import tempfile

from browser import body_data, dom, page_data, require_self_contained
from machines import two_cores
from runner import Job, case, ftrun, must, needs, run_cases

SOURCE = pathlib.Path(sys.argv[1])
H100 = SOURCE / "configs/machines/h100-80gb.yaml"

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    machine = job.scratch / "two.yaml"
    machine.write_text(two_cores(memory="1 GiB"))
    HOSTILE = "a <script>steal()</script> & \"more\""
    settings = {"parallel": {"data": 2}, "zero_optimization": {"stage": 2}}

    def plan(config, page, *arguments, code=0, machine=machine, **options):
        return must(ftrun("plan", "--config", config, "--machine", machine, "--html", page,
                          *arguments, **options), code)

    def config(name="planned", **changes):
        return job.config(name, **{**settings, **changes})

    def large(page, *arguments):
        """Plans 405 billion parameters on 16,384 GPUs, with 64 micro-batches on 16 stages."""
        return plan(SOURCE / "tests/sim/llama-3-405b/plan.yaml", page, "--nproc", 16384, "--nodes",
                    2048, *(argument for key in
                            ("device=cuda", "parallel.pipeline=16", "parallel.data=auto",
                             "gradient_accumulation_steps=64", "train_batch_size=auto")
                            for argument in ("--set", key)),
                    machine=H100, cwd=SOURCE)

    @case
    def a_page_holds_the_figures_of_the_plan():
        page, trace = job.scratch / "page.html", job.scratch / "step.json"
        folder = job.scratch / HOSTILE.replace("/", "\\")
        folder.mkdir()
        named = folder / "run.yaml"
        named.write_bytes(config().read_bytes())
        result = plan(named, page, "--trace", trace, "--device-memory", "2GiB")
        assert result.stdout.count(f"wrote {page}\n") == 1, result.stdout
        answer = json.loads(plan(named, page, "--json").stdout)["result"]
        plan(named, page, "--device-memory", "2GiB")
        require_self_contained(page)
        assert "<script>steal" not in page.read_text()
        data = page_data(page)
        assert f"config: {named}" in data["facts"], data["facts"]
        assert abs(data["seconds"] / answer["time"]["seconds"] - 1) < 1e-9
        rank, = data["ranks"]
        assert abs(sum(seconds for _, seconds in rank["parts"]) / data["seconds"] - 1) < 1e-9
        assert (abs(sum(seconds for _, seconds in rank["over"])
                    - dict(rank["parts"])["waits for collectives"]) < 1e-12)
        device, = rank["memory"]
        assert device["limit"] == 2 << 30
        assert device["allocated"] == answer["memory"]["device"]["total"]
        # The peak has the number of bytes that the plan prints.
        peak = max(range(len(device["begin"])),
                      key=lambda i: sum(column[i] for column in device["moments"].values()))
        printed = re.search(r"^device: peak at .*?, with .*? in addition to .*?: (.*)$",
                            result.stdout, re.M)[1]
        units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
        planned = {name: float(size) * units[unit] for name, size, unit in re.findall(
            r"(\w+) ([\d.]+) (B|KiB|MiB)", printed)}
        planned.pop("unused", None)
        shown = {name: column[peak] for name, column in device["moments"].items()
                 if column[peak] > 0}
        assert shown.keys() == planned.keys() and len(shown) >= 2, (shown, printed)
        assert all(abs(shown[name] - size) < 0.01 * size for name, size in planned.items()), (
            shown, printed)
        # The bars of each lane are the events of the trace.
        events = [event for event in json.loads(trace.read_text())["traceEvents"]
                  if event["ph"] == "X" and event["pid"] == 0]
        named_lanes = {event["tid"]: event["args"]["name"]
                       for event in json.loads(trace.read_text())["traceEvents"]
                       if event["name"] == "thread_name" and event["pid"] == 0}
        for lane in rank["lanes"]:
            own = [event for event in events if named_lanes[event["tid"]] == lane["name"]]
            assert sum(lane["bars"][6::7]) == len(own), lane["name"]
            assert abs(sum(event["dur"] for event in own) * 1000 - lane["busy"]) < len(own) + 1

    @case
    def a_search_shows_the_alternatives_with_their_bounds():
        page = job.scratch / "search.html"
        open_layout = config("search", threads=None, train_batch_size=8, parallel=None,
                             zero_optimization=None, train_micro_batch_size_per_gpu=None,
                             gradient_accumulation_steps=None)
        stdout = plan(open_layout, page, "--search", "--seconds", 600, "--json").stdout
        answer = json.loads(stdout)["result"]["search"]
        data = page_data(page)
        assert data["search"]["layouts"] == answer["layouts"]
        assert abs(data["seconds"] - answer["layouts"][0]["seconds"]) < 1e-9
        choices = {choice["choice"]: choice for choice in data["search"]["why_not"]}
        assert choices == {choice["choice"]: choice for choice in answer["why_not"]}
        bounded = [choice for choice in choices.values() if "seconds" in choice]
        assert bounded and all(choice["at_least"]["seconds"] <= choice["seconds"]
                               for choice in bounded)
        assert data["search"]["lines"][0].startswith("search: "), data["search"]["lines"]
        assert data["ranks"][0]["memory"][0]["limit"] > 0

    @case
    def the_largest_plan_gives_a_page_of_bounded_size():
        page = job.scratch / "large.html"
        large(page)
        assert page.stat().st_size < 3 << 20, page.stat().st_size
        data = page_data(page)
        assert [rank["stage"] for rank in data["ranks"]] == list(range(16))
        assert sum(len(lane["bars"]) // 7 for rank in data["ranks"]
                   for lane in rank["lanes"]) <= 40_000
        for rank in data["ranks"]:
            assert all(len(tier["begin"]) <= 400 for tier in rank["memory"])

    @case
    def only_a_page_of_a_plan_is_replaced():
        page, own_file, link = (job.scratch / name
                                for name in ("ours.html", "mine.html", "link.html"))
        plan(config(), page)
        before = page.read_text()
        plan(config(gradient_accumulation_steps=1), page)
        assert page_data(page)["seconds"] and page.read_text() != before
        own_file.write_text("<!DOCTYPE html>\n<p>mine")
        stderr = plan(config(), own_file, code=2).stderr
        assert (f"{own_file}: is not a page of ftrun plan's, and is not overwritten" in stderr
                and "--html FILE" in stderr), stderr
        assert own_file.read_text() == "<!DOCTYPE html>\n<p>mine"
        link.symlink_to(page)
        plan(config(), link, code=2)
        folder = job.scratch / "folder.html"
        folder.mkdir()
        plan(config(), folder, code=2)
        stderr = plan(config(), "-", code=2).stderr
        assert "--html -: this is written to a file, not to standard output" in stderr, stderr
        stderr = must(ftrun("plan", "--config", config(), "--machine", machine, "--trace", "-"),
                      2).stderr
        assert "--trace -: this is written to a file, not to standard output" in stderr, stderr
        must(ftrun("plan", "--config", config(), "--html", page), 2)

    @case
    def unwritable_pages_are_refused_at_the_start_and_leave_no_file():
        below = job.scratch / "file"
        below.write_text("")
        stderr = plan(config(), below / "page.html", code=5).stderr
        assert f"--html {below}/page.html: {below}: is not a folder" in stderr, stderr
        closed = job.scratch / "closed"
        closed.mkdir(mode=0o500)
        as_user = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
        assert "cannot be written: Permission denied" in plan(
            config(), closed / "page.html", code=5, wrapper=as_user).stderr
        small = job.scratch / "small"
        small.mkdir()
        stderr = plan(config(), small / "page.html", code=5,
                      wrapper=("prlimit", "--fsize=4096")).stderr
        assert "page.html" in stderr and not list(small.iterdir()), (stderr, list(small.iterdir()))

    ACTS = r"""
      const say = (name, value) => {
        document.body.dataset[name] = String(value).replaceAll('"', "'").replaceAll('>', ' to ');
      };
      const key = name => document.activeElement.dispatchEvent(
        new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true }));
      const told = () => document.querySelector('#lanes .said').textContent;
      say('bars', document.querySelectorAll('.split > div').length);
      say('areas', document.querySelectorAll('#memory path.category').length);
      document.querySelector('#lanes svg').focus();
      key('ArrowRight'); key('ArrowRight'); say('second', told());
      key('ArrowDown'); say('below', told());
      key('+'); key('+'); say('zoomed', (view.to - view.from) / total);
      key('End'); say('last', told());
      key('0'); say('whole', view.to - view.from === total);
      document.querySelector('#memory svg').focus(); key('ArrowRight');
      say('memory', document.querySelector('#memory .tip').textContent);
      const picture = document.querySelector('#lanes svg'), box = picture.getBoundingClientRect();
      const b = view.rank.lanes[0].bars, middle = (b[0] + b[1] / 2) / total;
      picture.dispatchEvent(new PointerEvent('pointermove', {
        clientX: box.left + 8 + (box.width - 16) * middle, clientY: box.top + 22 }));
      say('pointed', document.querySelector('#lanes .tip').textContent);
      document.getElementById('listed').open = true; listInstructions();
      say('rows', document.querySelectorAll('#instructions tr').length);
      const buttons = document.querySelectorAll('.split button');
      buttons[buttons.length - 1].click();
      say('whose', document.getElementById('whose').textContent);
      say('markup', document.querySelectorAll('script').length);
      say('wide', document.documentElement.scrollWidth - innerWidth);
      theme.click(); say('theme', document.documentElement.dataset.theme);
    """

    @needs("browser")
    def a_browser_draws_it():
        page = job.scratch / "drawn.html"
        folder = job.scratch / f"drawn {HOSTILE}".replace("/", "\\")
        folder.mkdir()
        named = folder / "run.yaml"
        named.write_bytes(config().read_bytes())
        plan(named, page)
        shown = body_data(dom(page, ACTS))
        # Three scripts: the data, the page's own, and this one.
        assert shown["markup"] == "3" and int(shown["areas"]) >= 3, shown
        assert re.match(r"compute: .*\nbegins [\d.]+ \S+, takes [\d.]+ \S+, ",
                        shown["second"]), shown
        assert re.match(r"(?!compute: ).*: .*\nbegins ", shown["below"]), shown
        assert shown["pointed"].startswith("compute: "), shown
        assert abs(float(shown["zoomed"]) - 0.25) < 1e-9 and shown["whole"] == "true", shown
        assert re.match(r"from [\d.]+ \S+: [\d.]+ [KMG]iB\nparameters: ", shown["memory"]), shown
        assert int(shown["rows"]) > 10 and shown["theme"] in ("light", "dark"), shown
        assert int(shown["wide"]) <= 0, shown
        assert int(body_data(dom(page, ACTS, 500))["wide"]) <= 0

    @needs("browser")
    def a_browser_draws_the_largest_plan():
        page = job.scratch / "large.html"
        large(page)
        shown = body_data(dom(page, ACTS))
        assert shown["bars"] == "16" and shown["whose"].endswith(", stage 15 of 16"), shown
        assert re.match(r"compute: ", shown["second"]) and int(shown["wide"]) <= 0, shown

    run_cases()
