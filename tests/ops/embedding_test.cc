#include "ops/embedding/embedding.h"
#include "base/error.h"
#include "operation_runner.h"
#include "ops/kinds.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

TEST_CASE("embedding gathers rows; its gradient adds up repeated tokens") {
  for_each_dtype([](DType dtype) {
    for (const int64_t width : {1, 70, 128}) {
      CAPTURE(dtype_name(dtype), width);
      const OracleCase c = round_to_stored({OpKind::kEmbed,
                                            NoAttrs{},
                                            {random_array({11, width}, 1)},
                                            {3, 0, 10, 3, 3, 7},
                                            random_array({6, width}, 2)},
                                           dtype);
      const OracleResult expected = oracle(c);
      OperationRunner runner(dtype);
      const ValueId tokens = runner.ints(c.ints), table = runner.input(c.inputs[0]),
                    dx = runner.input(c.gradient);
      const ValueId x = runner.output({6, width}), dtable = runner.output({11, width});
      runner.run(OpKind::kEmbed, {tokens, table}, {x});
      runner.run(OpKind::kEmbedWgrad, {tokens, dx}, {dtable});
      REQUIRE(relative_error(runner.read(x), expected.outputs[0]) == 0.0);
      REQUIRE(relative_error(runner.read(dtable), expected.gradients[0]) < tolerance(dtype));
      Array twice = runner.read(dtable);
      for (size_t i = 0; i < twice.data.size(); ++i) twice.data[i] += expected.gradients[0].data[i];
      runner.run(OpKind::kEmbedWgrad, {tokens, dx}, {dtable}, NoAttrs{}, true);
      REQUIRE(relative_error(runner.read(dtable), twice) < tolerance(dtype));
    }
  });
}

TEST_CASE("a token outside the table is caught before memory is touched") {
  OperationRunner runner(DType::kF32);
  const ValueId table = runner.input(random_array({11, 4}, 1)), x = runner.output({2, 4});
  for (const int32_t bad : {-1, 11}) {
    const ValueId tokens = runner.ints({0, bad});
    try {
      runner.run(OpKind::kEmbed, {tokens, table}, {x});
      FAIL("no error");
    } catch (const Error& e) {
      REQUIRE(e.code() == ExitCode::kBug);
      REQUIRE_THAT(
          e.message(),
          Catch::Contains(cat("token ", bad,
                              " at position 1 of a micro-batch is outside the table of 11 rows")));
    }
  }
}

TEST_CASE(
    "the row of an ignored token gets no gradient, and the other rows' gradients keep their bits") {
  for_each_dtype([](DType dtype) {
    const std::vector<int32_t> tokens{3, 9, 0, 9, 3, 11, 9};
    const Array dx = rounded(random_array({7, 70}, 2), dtype),
                before = rounded(random_array({12, 70}, 3), dtype);
    for (const bool accumulate : {false, true})
      for (const int64_t first : {0, 6}) {
        CAPTURE(dtype_name(dtype), accumulate, first);
        OperationRunner runner(dtype);
        const int64_t rows = 12 - first;
        const Array table{{rows, 70}, {before.data.begin() + first * 70, before.data.end()}};
        const ValueId whole = runner.input(table), without = runner.input(table),
                      ids = runner.ints(tokens), gradient = runner.input(dx);
        runner.run(OpKind::kEmbedWgrad, {ids, gradient}, {whole}, EmbeddingRowsAttrs{first, 12},
                   accumulate);
        runner.run(OpKind::kEmbedWgrad, {ids, gradient}, {without},
                   EmbeddingRowsAttrs{first, 12, 9}, accumulate);
        const Array all = runner.read(whole), found = runner.read(without),
                    given = rounded(table, dtype);
        for (size_t i = 0; i < found.data.size(); ++i)
          REQUIRE(found.data[i] == (static_cast<int64_t>(i) / 70 + first != 9 ? all.data[i]
                                    : accumulate                              ? given.data[i]
                                                                              : 0.0));
      }
  });
}

TEST_CASE(
    "a table of part of the vocabulary gives zeros for the tokens of other rows and gets no "
    "gradient from them") {
  for_each_dtype([](DType dtype) {
    const std::vector<int32_t> tokens{3, 9, 0, 5, 3, 11, 4};
    const Array table = rounded(random_array({12, 70}, 1), dtype),
                dx = rounded(random_array({7, 70}, 2), dtype);
    OperationRunner whole(dtype);
    const ValueId whole_tokens = whole.ints(tokens), x = whole.output({7, 70}),
                  dtable = whole.output({12, 70});
    whole.run(OpKind::kEmbed, {whole_tokens, whole.input(table)}, {x});
    whole.run(OpKind::kEmbedWgrad, {whole_tokens, whole.input(dx)}, {dtable});
    for (int64_t first = 0; first < 12; first += 4) {
      CAPTURE(dtype_name(dtype), first);
      const EmbeddingRowsAttrs rows{first, 12};
      const auto begin = table.data.begin() + first * 70;
      OperationRunner runner(dtype);
      const ValueId ids = runner.ints(tokens),
                    own = runner.input({{4, 70}, {begin, begin + 4 * 70}});
      const ValueId own_x = runner.output({7, 70}), own_dtable = runner.output({4, 70});
      runner.run(OpKind::kEmbed, {ids, own}, {own_x}, rows);
      runner.run(OpKind::kEmbedWgrad, {ids, runner.input(dx)}, {own_dtable}, rows);
      const Array found = runner.read(own_x), all = whole.read(x),
                  gradient = runner.read(own_dtable);
      for (size_t n = 0; n < tokens.size(); ++n)
        for (size_t i = n * 70; i < (n + 1) * 70; ++i)
          REQUIRE(found.data[i] == (tokens[n] / 4 == first / 4 ? all.data[i] : 0.0));
      const Array whole_gradient = whole.read(dtable);
      for (size_t i = 0; i < gradient.data.size(); ++i)
        REQUIRE(gradient.data[i] == whole_gradient.data[static_cast<size_t>(first * 70) + i]);
      REQUIRE_THROWS_WITH(
          runner.run(OpKind::kEmbed, {runner.ints({12, 0, 0, 0, 0, 0, 0}), own}, {own_x}, rows),
          Catch::Contains(
              "token 12 at position 0 of a micro-batch is outside the table of 12 rows"));
    }
  });
}

}  // namespace
}  // namespace ftrun::testing
