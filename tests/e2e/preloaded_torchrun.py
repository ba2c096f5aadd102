"""A process that has imported torchrun and forks its agents, each with the arguments, environment,
folder and output that a test sends (runner.py: Preloaded), as preloaded.cc does for runs."""
import os
import socket
import struct
import sys
import traceback

import torch.distributed.run as torchrun


def read_request(requests):
    """Reads output, folder, words and variables of the next agent; returns None if the test has
    ended."""
    head, output, _, _ = socket.recv_fds(requests, struct.calcsize("=III"), 2)
    if not head:
        return None
    size, words, variables = struct.unpack("=III", head)
    texts = requests.recv(size, socket.MSG_WAITALL).split(b"\0")[:-1]
    assert len(texts) == 1 + words + variables and len(output) == 2, (texts, output)
    return output, texts[0], texts[1:1 + words], texts[1 + words:]


def become_agent(output, folder, words, variables):
    """Runs the agent, and ends without finalizing the interpreter, which takes a second with
    torch."""
    for target, descriptor in zip((1, 2), output, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(folder)
    os.environb.clear()
    os.environb.update(variable.split(b"=", 1) for variable in variables)
    code = 1
    try:
        torchrun.main([os.fsdecode(word) for word in words[1:]])
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(requests):
    """Forks twice and waits for the process in the middle. The agent then becomes a child of the
    test, which adopts orphans."""
    while request := read_request(requests):
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            if agent := os.fork():
                os.write(writer, struct.pack("=i", agent))
                os._exit(0)
            for descriptor in (reader, writer):
                os.close(descriptor)
            requests.close()
            become_agent(*request)
        os.close(writer)
        agent = os.read(reader, 4)
        os.close(reader)
        os.waitpid(between, 0)
        for descriptor in request[0]:
            os.close(descriptor)
        requests.sendall(agent)


serve(socket.socket(fileno=int(os.environ["FTRUN_PRELOADED_SOCKET"])))
