"""Looks up names of the Hugging Face Hub in the local cache. Nothing is downloaded."""
import os
import re

from script_errors import UserError

# A Hub name, as lib/base/hub_cache.cc reads it.
NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,"
                  r"95})(?:@([^\s\\]+))?")

# A path with one of these extensions is a file name, never a Hub name, even if the file does not
# exist.
IS_FILE = re.compile(r"\.(txt|text|md|jsonl?|ndjson|parquet|arrow|csv|tsv|py|html?|gz|zst|zip|"
                     r"bin)$", re.IGNORECASE)


def find_snapshot(path, repo_type, say):
    """Returns the folder for `path`: `path` itself if it exists or is not a Hub name, else the
    snapshot in the cache. `repo_type` is "model" or "dataset"; `say` is called with a line if a
    snapshot is used. Raises UserError with the command that downloads a missing snapshot."""
    name = NAME.fullmatch(path)
    if os.path.lexists(path) or not name or "--" in path or ".." in path or IS_FILE.search(path):
        return path
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    repository, revision = name.groups()
    try:
        folder = snapshot_download(repository, repo_type=repo_type, revision=revision,
                                   local_files_only=True)
    except HFValidationError:
        return path
    except LocalEntryNotFoundError:
        kind = "" if repo_type == "model" else f" --repo-type {repo_type}"
        at = f" --revision {revision}" if revision else ""
        raise UserError(f"{path}: there is no such file or folder, and no such {repo_type} in the "
                        f"Hugging Face cache, {constants.HF_HUB_CACHE}; download it: hf download "
                        f"{repository}{kind}{at}") from None
    say(f"{path}: commit {os.path.basename(folder)} in the Hugging Face cache")
    return folder
