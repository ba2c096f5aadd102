"""Checks the manifests in scripts/kubernetes. The cluster's own schemas must accept them; no
package has schemas for JobSet and PyTorchJob, so their Job and pod parts are checked with those of
a Job and a pod, and the other fields with a table. Environment, arguments and exit codes must be
ftrun's: two processes are started with what the pods would get."""
import json
import pathlib
import re
import signal
import sys
import tempfile

import kubernetes_validate
import yaml

from runner import (BINARY, Job, Running, await_that, case, free_port, ftrun, manifest, must,
                    require_same_run, run_cases, steps_so_far)

SOURCE = pathlib.Path(sys.argv[1])
FOLDER = SOURCE / "scripts" / "kubernetes"
VERSION = kubernetes_validate.latest_version()
# The fields of the kinds that have no schema here, from their API references
# (jobset.x-k8s.io/v1alpha2, kubeflow.org/v1).
JOBSET = {"network": {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"},
          "failurePolicy": {"maxRestarts", "rules"},
          "replicatedJobs": {"name", "replicas", "template"}}
PYTORCHJOB = {"nprocPerNode": None, "pytorchReplicaSpecs": {"Master", "Worker"}}
REPLICA = {"replicas", "restartPolicy", "template"}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def container_of(template):
    (container,) = template["spec"]["containers"]
    return container


def valid(document):
    kubernetes_validate.validate(document, VERSION, strict=True)


def valid_template(template):
    valid({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "one"},
           "template": template})


SERVICE, JOB = documents("job.yaml")

with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    job = Job(scratch)

    @case
    def schemas_accept_the_job():
        valid(SERVICE)
        valid(JOB)
        broken = json.loads(json.dumps(JOB))
        broken["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
        try:
            valid(broken)
        except Exception as error:  # the package's class of errors is not the same in every version
            assert "readOnly" in str(error), error
        else:
            raise AssertionError("an unknown field is accepted: the check cannot fail")

    @case
    def other_kinds_hold_the_same_pods():
        (jobset,) = documents("jobset.yaml")
        assert jobset["spec"].keys() <= JOBSET.keys(), jobset["spec"].keys()
        for field in ("network", "failurePolicy"):
            assert jobset["spec"][field].keys() <= JOBSET[field], field
        (nodes,) = jobset["spec"]["replicatedJobs"]
        assert nodes.keys() <= JOBSET["replicatedJobs"]
        inner = nodes["template"]
        valid({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"},
               "spec": inner["spec"]})
        host = f"{jobset['metadata']['name']}-{nodes['name']}-0-0.{jobset['metadata']['name']}"
        ours, theirs = container_of(JOB["spec"]["template"]), container_of(
            inner["spec"]["template"])
        assert theirs["env"] == [e | ({"value": host} if e["name"] == "MASTER_ADDR" else {})
                                 for e in ours["env"]]
        assert ({k: v for k, v in theirs.items() if k != "env"}
                == {k: v for k, v in ours.items() if k != "env"})
        assert inner["spec"]["podFailurePolicy"] == JOB["spec"]["podFailurePolicy"]
        (pytorch,) = documents("pytorchjob.yaml")
        assert (pytorch["spec"].keys() <= PYTORCHJOB.keys()
                and pytorch["spec"]["pytorchReplicaSpecs"].keys() == {"Master", "Worker"})
        for replica in pytorch["spec"]["pytorchReplicaSpecs"].values():
            assert replica.keys() == REPLICA
            valid_template(replica["template"])
            theirs = container_of(replica["template"])
            assert (theirs["name"] == "pytorch" and theirs["args"] == ours["args"]
                    and theirs["securityContext"] == ours["securityContext"])
            assert [e["name"] for e in theirs["env"]] == ["FTRUN_TOKEN"], (
                "the operator gives the others")

    @case
    def pods_are_as_small_as_they_can_be():
        spec, container = JOB["spec"]["template"]["spec"], container_of(JOB["spec"]["template"])
        assert (spec["securityContext"]["runAsNonRoot"]
                and container["securityContext"]["readOnlyRootFilesystem"])
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert spec["terminationGracePeriodSeconds"] == int(
            container["args"][container["args"].index("--stop-lead") + 1])
        shm = next(v for v in spec["volumes"] if v["name"] == "shm")
        assert (shm["emptyDir"]["medium"] == "Memory"
                and {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"])

    def pod(index, port, config):
        """Returns the command and the environment of a pod of the Job; the names of its service
        lead to this machine."""
        container = container_of(JOB["spec"]["template"])
        env = {"FTRUN_TOKEN": "0123456789abcdef0123456789abcdef"}
        for entry in container["env"]:
            if "value" in entry:
                env[entry["name"]] = entry["value"]
            elif "fieldRef" in entry["valueFrom"]:
                assert (entry["valueFrom"]["fieldRef"]["fieldPath"]
                        == "metadata.annotations['batch.kubernetes.io/job-completion-index']")
                env[entry["name"]] = str(index)
        assert (env["MASTER_ADDR"]
                == f"{JOB['metadata']['name']}-0.{JOB['spec']['template']['spec']['subdomain']}")
        assert JOB["spec"]["template"]["spec"]["subdomain"] == SERVICE["metadata"]["name"]
        assert int(env["WORLD_SIZE"]) == JOB["spec"]["completions"] == JOB["spec"]["parallelism"]
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [str(config) if word == "/work/train.yaml" else word
                for word in container["args"]], env

    def start_pods(config):
        port = free_port()
        return [Running([BINARY, *words], env=env)
                for words, env in (pod(index, port, config)
                                   for index in range(JOB["spec"]["completions"]))]

    def action_of(code):
        for rule in JOB["spec"]["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return rule["action"]
        return "Count"

    @case
    def two_pods_train_are_stopped_and_continue():
        changes = {"train": {"steps": 300, "weight_decay_exempt": "none"},
                   "train_micro_batch_size_per_gpu": 1}
        must(ftrun("--config", job.config("straight", **changes), "--nproc", 2))
        pods = start_pods(job.config("pods", **changes))
        await_that(lambda: len(steps_so_far(job.out("pods"))) > 3, "the pods train", *pods)
        pods[1].process.send_signal(signal.SIGUSR1)
        for each in pods:
            each.wait(75)
        assert action_of(75) == "Ignore"
        resumed_pods = start_pods(job.config("pods", **changes))
        for each in resumed_pods:
            each.wait(0)
        assert manifest(job.out("pods"))["exit_code"] == 0
        require_same_run(job.out("straight"), job.out("pods"))

    @case
    def a_config_that_is_wrong_ends_the_job():
        bad = must(ftrun("--config", job.config("bad", trian={"steps": 1})), 2)
        assert "trian" in bad.stderr and action_of(2) == "FailJob"
        listed_codes = set(map(int, re.findall(r"^\| (\d+) \|",
                                               (SOURCE / "docs" / "errors.md").read_text(),
                                               re.MULTILINE)))
        assert listed_codes == {0, 1, 2, 3, 4, 5, 6, 7, 75}, listed_codes
        assert {code for code in listed_codes if action_of(code) == "FailJob"} == {1, 2, 3, 4, 7}, (
            "places and peers may be better the next time")

    run_cases()
