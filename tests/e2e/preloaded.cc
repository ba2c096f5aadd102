// This library for LD_PRELOAD turns the ftrun binary into a process that has loaded the engine and
// starts one run after the other, each in a separate process, with the arguments, environment,
// folder and output that the test sends (tests/e2e/runner.py: Preloaded). Loading LibTorch and
// compiling oneDNN's fp32 kernels is most of the time of a tiny model's run. ftrun's supervisor
// forks its ranks from a process that has done both in the same way.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
/// The engine's entry point that compiles fp32 kernels; null: of the CPU's library.
using CompileKernels = void (*)(const void* pinned);

Main real_main = nullptr;
constexpr const char* kSocketVariable = "FTRUN_PRELOADED_SOCKET";

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "preloaded: %s: %s\n", what, std::strerror(errno));
  ::_exit(127);
}

/// Request is one run as the test wants it: zero-terminated texts, after a head that holds their
/// numbers.
struct Request {
  struct Head {
    uint32_t bytes, arguments, variables;
  };
  Head head{};
  std::array<int, 2> output{-1, -1};
  /// The folder, then arguments, then variables.
  std::vector<char> texts;
};

/// Reads the head and its two descriptors; returns false if the test has ended.
bool read_head(int socket, Request& request) {
  iovec part{&request.head, sizeof request.head};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof request.output)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  if (got == 0) return false;
  const cmsghdr* const passed = CMSG_FIRSTHDR(&message);
  if (got != sizeof request.head || passed == nullptr ||
      passed->cmsg_len != CMSG_LEN(sizeof request.output))
    fail("a request without its head");
  std::memcpy(request.output.data(), CMSG_DATA(passed), sizeof request.output);
  return true;
}

void read_texts(int socket, Request& request) {
  request.texts.resize(request.head.bytes);
  if (::recv(socket, request.texts.data(), request.texts.size(), MSG_WAITALL) !=
      ssize_t{request.head.bytes})
    fail("a request without its texts");
}

/// Runs the child's part of a request: makes the process what exec of the binary would have made.
[[noreturn]] void become_run(int socket, Request& request) {
  ::close(socket);
  ::dup2(request.output[0], STDOUT_FILENO);
  ::dup2(request.output[1], STDERR_FILENO);
  for (const int fd : request.output) ::close(fd);
  char* next = request.texts.data();
  const auto take = [&next] {
    char* const text = next;
    next += std::strlen(text) + 1;
    return text;
  };
  if (::chdir(take()) != 0) fail("chdir");
  std::vector<char*> arguments;
  for (uint32_t i = 0; i < request.head.arguments; ++i) arguments.push_back(take());
  arguments.push_back(nullptr);
  ::clearenv();
  for (uint32_t i = 0; i < request.head.variables; ++i) ::putenv(take());
  const int code = real_main(static_cast<int>(request.head.arguments), arguments.data(), environ);
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(code);  // like a run that has loaded the engine: without LibTorch's destructors
}

/// Forks twice and waits for the process in the middle. The run's process then becomes a child of
/// the test, which adopts orphans.
pid_t start_run(int socket, Request& request) {
  int ends[2];
  if (::pipe(ends) != 0) fail("pipe");
  const pid_t between = ::fork();
  if (between < 0) fail("fork");
  if (between == 0) {
    const pid_t run = ::fork();
    if (run == 0) {
      ::close(ends[0]), ::close(ends[1]);
      become_run(socket, request);
    }
    ::_exit(::write(ends[1], &run, sizeof run) == sizeof run && run > 0 ? 0 : 127);
  }
  pid_t run = -1;
  ::close(ends[1]);
  if (::read(ends[0], &run, sizeof run) != sizeof run || run < 0) fail("starting a run");
  ::close(ends[0]);
  ::waitpid(between, nullptr, 0);
  return run;
}

int serve(int, char**, char**) {
  const int socket = std::atoi(std::getenv(kSocketVariable));
  const auto binary = std::filesystem::read_symlink("/proc/self/exe");
  const std::string engine =
      (binary.parent_path().parent_path() / "lib" / "libftrun_engine.so").string();
  void* const handle = ::dlopen(engine.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const auto compile_kernels =
      handle == nullptr
          ? nullptr
          : reinterpret_cast<CompileKernels>(::dlsym(handle, "ftrun_engine_compile_fp32_kernels"));
  if (compile_kernels == nullptr) {
    std::fprintf(stderr, "preloaded: %s\n", ::dlerror());
    ::_exit(127);
  }
  try {
    compile_kernels(nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "preloaded: %s\n", error.what());
    ::_exit(127);
  }
  Request request;
  while (read_head(socket, request)) {
    read_texts(socket, request);
    const pid_t run = start_run(socket, request);
    for (const int fd : request.output) ::close(fd);
    if (::send(socket, &run, sizeof run, 0) != sizeof run) fail("answering");
  }
  ::_exit(0);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main main, int argc,
                                                                        char** argv, void (*init)(),
                                                                        void (*fini)(),
                                                                        void (*end_loader)(),
                                                                        void* stack_end) {
  const auto start =
      reinterpret_cast<decltype(&__libc_start_main)>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  if (start == nullptr) fail("__libc_start_main");
  real_main = main;
  return start(std::getenv(kSocketVariable) != nullptr ? serve : main, argc, argv, init, fini,
               end_loader, stack_end);
}
