"""Tokenizes documents in several processes, keeping their order."""
import collections
import concurrent.futures
import multiprocessing
import os

from training_data.encoding import Encoder
from script_errors import BadDocument, MachineError, UserError

BATCH_BYTES = 1 << 18  # the size of the batches that a process tokenizes
SHARED_MEMORY = "/dev/shm"  # where glibc makes semaphores between processes
_encoder = None


def start_worker(arguments):
    """Initializes a worker process. Processes are forked, so they inherit the encoder of the
    parent."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # parallelism comes from the processes
    if _encoder is None:
        _encoder = Encoder(**arguments)


def encode_batch(batch):
    """Encodes the documents of a batch in a worker process."""
    return [encode_or_bad(document) for document in batch]


def encode_or_bad(document):
    """Returns an encoded document, or a BadDocument."""
    try:
        return _encoder.encode(document)
    except BadDocument as bad:
        return bad


def batches(stream):
    """Yields lists of documents of about BATCH_BYTES."""
    batch, size = [], 0
    for document in stream:
        batch.append(document)
        size += document.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def process_pool(workers):
    """Starts a pool of worker processes."""
    try:
        return concurrent.futures.ProcessPoolExecutor(workers,
                                                      mp_context=multiprocessing.get_context(
                                                          "fork"), initializer=start_worker,
                                                      initargs=(None,))
    except (OSError, ImportError) as error:  # Python raises these if the system has no semaphores
        raise MachineError(f"{SHARED_MEMORY}: {getattr(error, 'strerror', None) or error}: the "
                           "tokenizing processes need a few bytes there; make the folder writable "
                           "and free some space in it, or tokenize in this process with "
                           "--workers 1") from None


def submit(pool, batch):
    """Submits a batch to the pool; returns its future."""
    try:
        return pool.submit(encode_batch, batch)
    except OSError as error:
        raise MachineError(f"a tokenizing process cannot be started: {error.strerror}; use "
                           "fewer with --workers, or see ulimit -u and -v") from None


def encoded_batches(stream, workers, encoder):
    """Yields (documents, encoded) in the order of the stream, for any number of processes."""
    global _encoder
    _encoder = encoder
    if workers == 1:
        start_worker(None)
        for batch in batches(stream):
            yield batch, encode_batch(batch)
        return
    with process_pool(workers) as pool:
        pending = collections.deque()
        try:
            for batch in batches(stream):
                pending.append((batch, submit(pool, batch)))
                if len(pending) > 3 * workers:  # limits the memory that is used
                    done, future = pending.popleft()
                    yield done, future.result()
            while pending:
                done, future = pending.popleft()
                yield done, future.result()
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError("a tokenizing process was killed, probably because memory ran out; "
                            "use fewer processes with --workers") from None
        finally:
            for _, future in pending:
                future.cancel()
