#include "cluster/rank_output.h"

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {
struct Screen {
  std::string text;
  RankOutput output;

  explicit Screen(bool terminal)
      : output({.ranks = 3,
                .terminal = {terminal, terminal},
                .write = [this](OutputStream, std::string_view bytes) { text += bytes; }}) {}
  void err(int rank, std::string_view bytes) { output.feed(rank, OutputStream::kErr, bytes); }
};
}  // namespace

TEST_CASE("lines of ranks are complete, whatever pieces they arrive in") {
  Screen screen(false);
  screen.err(1, "hal");
  screen.err(2, "two\nthr");
  screen.err(1, "f\n");
  screen.err(2, "ee\n");
  REQUIRE(screen.text == "[rank 2] two\n[rank 1] half\n[rank 2] three\n");
}

TEST_CASE("stdout and stderr of a rank do not mix within a line") {
  Screen screen(false);
  screen.output.feed(1, OutputStream::kOut, "a");
  screen.err(1, "b\n");
  screen.output.feed(1, OutputStream::kOut, "c\n");
  REQUIRE(screen.text == "[rank 1] b\n[rank 1] ac\n");
}

TEST_CASE("a rank that ends without a line end still has its text shown") {
  Screen screen(false);
  screen.err(1, "last words");
  screen.output.finish(1);
  screen.output.finish(1);
  REQUIRE(screen.text == "[rank 1] last words\n");
}

TEST_CASE("rank 0's live line passes through to a terminal untouched and is redrawn under others") {
  Screen screen(true);
  screen.err(0, "\rstep 1");
  screen.err(0, "\rstep 2");
  REQUIRE(screen.text == "\rstep 1\rstep 2");
  screen.err(1, "hello\n");
  REQUIRE(screen.text == "\rstep 1\rstep 2\r\x1b[K[rank 1] hello\nstep 2");
  screen.err(0, "\rdone\nplain\n");
  REQUIRE(screen.text == "\rstep 1\rstep 2\r\x1b[K[rank 1] hello\nstep 2\rdone\n[rank 0] plain\n");
}

TEST_CASE("a live line that ends in a carriage return passes through to a terminal") {
  Screen screen(true);
  screen.err(0, "step 1\rstep 2\r");
  REQUIRE(screen.text == "step 1\rstep 2\r");
}

TEST_CASE("other ranks' carriage returns never reach the terminal") {
  Screen screen(true);
  screen.err(1, "50%\r100%\nend\r\n");
  REQUIRE(screen.text == "[rank 1] 100%\n[rank 1] end\n");
}

TEST_CASE("a pipe gets plain lines: what a carriage return overwrote is dropped") {
  Screen screen(false);
  screen.err(0, "\rstep 1\rstep 2\nnext\n");
  REQUIRE(screen.text == "[rank 0] step 2\n[rank 0] next\n");
}

TEST_CASE("an endless line is cut, so that memory stays bounded") {
  Screen screen(false);
  for (int i = 0; i < 100; ++i) screen.err(1, std::string(1024, 'x'));
  REQUIRE(screen.text.size() > 60 * 1024);
}
