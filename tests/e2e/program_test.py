"""What only says how a step is carried out changes no bit: bucket sizes, overlap and the transport, on
three ranks (with two an addition cannot be reordered)."""
import tempfile

from runner import Job, case, ftrun, must, run_cases, same_run, steps

with tempfile.TemporaryDirectory() as scratch:
    job = Job(scratch)
    FEW = {"train": {"steps": 6}, "scheduler": {"type": "cosine", "params": {"warmup_num_steps": 2}}}
    WAYS = {f"{size}-{overlap}": {"reduce_bucket_size": size, "overlap_comm": overlap}
            for size in (1000, 20000, 500000000) for overlap in (False, True)}

    @case
    def programs_differ():
        counts = {}
        for name, zero in WAYS.items():
            plan = must(ftrun("plan", "--program", "--config", job.config(name, **FEW, zero_optimization=zero), "--nproc", 3))
            counts[name] = plan.stdout.count("all_reduce")
        assert counts["1000-True"] > counts["20000-True"] > counts["500000000-True"] >= 2, counts

    @case
    def buckets_and_overlap_change_no_bit():
        for name, zero in WAYS.items():
            job.run(name, "--nproc", 3, **FEW, zero_optimization=zero)
            same_run(job.out("1000-False"), job.out(name))
        assert len(steps(job.out("1000-False"))) == 6

    @case
    def sgd_and_accumulation_too():
        sgd = {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "gradient_accumulation_steps": 3}
        for name in ("1000-True", "500000000-False"):
            job.run(f"sgd-{name}", "--nproc", 3, **FEW, **sgd, zero_optimization=WAYS[name])
        same_run(job.out("sgd-1000-True"), job.out("sgd-500000000-False"))

    @case
    def gloo_adds_in_the_same_order():
        job.run("gloo", "--nproc", 3, **FEW, comm={"backend": "gloo"})
        same_run(job.out("1000-False"), job.out("gloo"))

    run_cases()
