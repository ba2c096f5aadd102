#include "checkpoint/checkpoint_group.h"

#include <exception>

#include "base/as_error.h"
#include "base/error.h"
#include "base/rank_error.h"
#include "checkpoint/json_strict.h"

namespace ftrun {
namespace {
using nlohmann::json;

std::string outcome_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string run_and_encode(const std::function<std::string()>& work) {
  try {
    return outcome_text({{"result", work()}});
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    const auto* own = dynamic_cast<const RankError*>(&exception);
    return outcome_text({{"code", static_cast<int>(error.code())},
                         {"message", error.message()},
                         {"remedy", error.remedy()},
                         {"of_device", own != nullptr && own->is_device_failure() ? 1 : 0}});
  }
}

void throw_if_failed(const json& outcome, const std::string& what, const CheckpointGroup& group,
                     size_t rank) {
  if (outcome.contains("result")) return;
  const std::string who = group.world_size > 1 ? cat("rank ", rank, ": ") : "";
  const Error error(static_cast<ExitCode>(json_int(outcome, "code", what)),
                    cat(what, ": ", who, json_text(outcome, "message", what)),
                    json_text(outcome, "remedy", what));
  throw RankError(error, static_cast<int>(rank), json_int(outcome, "of_device", what) != 0);
}

}  // namespace

std::vector<std::string> run_on_all_ranks(const CheckpointGroup& group, const std::string& what,
                                          const std::function<std::string()>& work) {
  const std::vector<std::string> texts = group.all_gather(run_and_encode(work));
  if (texts.size() != static_cast<size_t>(group.world_size))
    bug(cat("a gather over ", group.world_size, " ranks gave ", texts.size(), " texts"));
  std::vector<std::string> results;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const json outcome = parse_json_strict(texts[rank], cat("answer of rank ", rank));
    throw_if_failed(outcome, what, group, rank);
    results.push_back(json_text(outcome, "result", what));
  }
  return results;
}

}  // namespace ftrun
