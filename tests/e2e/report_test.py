"""Tests the page of a run: what it shows for one run and for several runs in the same charts, with
lines that a kill tore and names that look like markup. A browser draws it if there is one."""
import json
import re
import shutil
import tempfile

from browser import body_data, dom, page_data, require_self_contained
from runner import Job, case, ftrun, must, needs, run_cases, steps, tiny_data

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    words = {"model": {"type": "BPE", "vocab": {f"w{i}": i for i in range(211)}},
             "decoder": {"type": "ByteLevel"}}
    (job.model / "tokenizer.json").write_text(json.dumps(words))
    validation = tiny_data(job.scratch / "validation.bin", tokens=32 * 4 + 1, seed=5)
    HOSTILE = "a run <img src=x onerror=steal()> & \"more\""

    def trained(name, **train):
        if not job.out(name).exists():
            job.run(name, train={"steps": 6, "evaluation": {"every": 2, "samples": 0},
                                 "generate": {"prompt_tokens": 4, "tokens": 5, "prompts": 2}}
                    | train,
                    data={"validation": str(validation), "token_dtype": "uint16"})
        return job.out(name)

    @case
    def each_run_ends_with_its_page():
        out = trained(HOSTILE)
        page = out / "report.html"
        run, = page_data(page)["runs"]
        assert run["name"] == HOSTILE and "<img" not in page.read_text()
        assert (run["steps"]["step"] == [m["step"] for m in steps(out)]
                and run["steps"]["loss"] == [m["loss"] for m in steps(out)])
        assert (run["evaluations"][0]["step"] == [0, 2, 4, 6]
                and len(run["texts"]) == 8), run["evaluations"]
        assert run["config"]["train.steps"] == "6" and "steps: 6" in run["config_yaml"]
        assert any("ended: " in fact and ", done" in fact for fact in run["facts"]), run["facts"]
        require_self_contained(page)

    @case
    def a_run_that_fails_has_one_too():
        bad = job.scratch / "bad.bin"
        ids = bytearray(job.data.read_bytes())
        ids[2000:2002] = (5000).to_bytes(2, "little")
        bad.write_bytes(ids)
        job.run("failed", code=4, data={"train": str(bad), "token_dtype": "uint16",
                                        "shuffle": False})
        run, = page_data(job.out("failed") / "report.html")["runs"]
        assert any("ended: " in fact and "5000" in fact for fact in run["facts"]), run["facts"]

    @case
    def torn_lines_are_counted_and_runs_are_laid_over_each_other():
        first, second = trained(HOSTILE), trained("second", seed=7)
        torn = job.scratch / "torn"
        shutil.copytree(first, torn)
        text = (torn / "metrics.jsonl").read_text()
        (torn / "metrics.jsonl").write_text(text[:-40])
        (torn / "run.json").write_text('{"config": {"a"')
        page = job.scratch / "all.html"
        assert must(ftrun("report", torn, second, "--out", page)).stdout == f"wrote {page}\n"
        runs = page_data(page)["runs"]
        assert ([run["unreadable"] for run in runs] == [1, 0]
                and [run["name"] for run in runs] == ["torn", "second"])
        assert runs[0]["config"] == {} and runs[1]["config"]["train.seed"] == "7"

    @case
    def files_of_others_are_not_overwritten():
        out = trained(HOSTILE)
        mine = job.scratch / "mine.html"
        mine.write_text("<p>mine")
        refused = must(ftrun("report", out, "--out", mine), 2)
        assert (f"{mine}: is not a report of ftrun's, and is not overwritten"
                in refused.stderr), refused.stderr
        assert mine.read_text() == "<p>mine"
        link = job.scratch / "link.html"
        link.symlink_to(out / "report.html")
        must(ftrun("report", out, "--out", link), 2)
        assert "several runs need --out" in must(ftrun("report", out, out), 2).stderr
        assert "holds no run" in must(ftrun("report", job.model), 4).stderr
        must(ftrun("report", out))
        # A file that another program wrote under this name in a run's folder outlasts the run,
        # which says so.
        foreign = trained("foreign")
        (foreign / "report.html").write_text("mine")
        resumed = job.run("foreign", "--resume", "auto", train={"steps": 7},
                          data={"token_dtype": "uint16"})
        assert ("report.html was not written: " in resumed.stderr
                and (foreign / "report.html").read_text() == "mine"), resumed.stderr

    @needs("browser")
    def a_browser_draws_it():
        first, second = trained(HOSTILE), trained("second", seed=7)
        page = job.scratch / "both.html"
        must(ftrun("report", first, second, "--out", page))
        plain = dom(page)
        charts = plain.count('class="series"')
        # The charts of each run: loss, its evaluation, perplexity, accuracy, learning rate, norm,
        # tokens/s, seconds, two waits, memory.
        assert charts >= 2 * 11, plain[-3000:]
        assert "<img" not in plain and "before training" in plain and "what differs:" in plain
        assert not re.search(r"NaN|undefined|Infinity", "".join(re.findall(r' d="[^"]*"', plain)))
        # The script hides one run and shows it again, changes the smoothing, zooms into a part of
        # the steps by dragging, and resets the zoom.
        acted = dom(page, """
          const say = (name, value) => { document.body.dataset[name] = value; };
          const lines = () => document.querySelectorAll('.series').length;
          const paths = () => document.querySelector('.series').getAttribute('d');
          say('all', lines());
          document.querySelector('#runs input').click();
          say('one', lines());
          document.querySelector('#runs input').click();
          const before = paths();
          smoothing.value = 0.95; smoothing.dispatchEvent(new Event('input'));
          say('smoothed', before !== paths());
          const chart = document.querySelector('.chart svg'), box = chart.getBoundingClientRect();
          const at = (type, share) => chart.dispatchEvent(new PointerEvent(
            type, { clientX: box.left + box.width * share, clientY: box.top + 50 }));
          at('pointerdown', 0.3); at('pointermove', 0.5);
          say('tip', document.querySelector('.tip').textContent);
          at('pointerup', 0.7);
          say('zoomed', document.getElementById('reset').hidden
            ? 'no' : view.from.toFixed(2) + ' ' + view.to.toFixed(2));
          document.getElementById('reset').click();
          say('reset', view.from === null);
          theme.click();
          say('theme', document.documentElement.dataset.theme);
        """)
        shown = body_data(acted)
        assert int(shown["one"]) * 2 == int(shown["all"]) >= charts, shown
        assert shown["smoothed"] == "true" and shown["reset"] == "true", shown
        low, high = map(float, shown["zoomed"].split())
        assert 0 < low < high < 6, shown
        assert ("second training: " in shown["tip"]
                and re.search(r'data-theme="(light|dark)"', acted)), shown
        # On a phone nothing is wider than the screen.
        narrow = dom(page, "document.body.dataset.wide = document.documentElement.scrollWidth - "
                           "innerWidth;", width=500)
        assert int(re.search(r'data-wide="(-?\d+)"', narrow).group(1)) <= 0, narrow[:3000]

    run_cases()
