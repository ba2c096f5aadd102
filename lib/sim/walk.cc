#include "sim/walk.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "program/lifetime.h"
#include "sim/folded_world.h"

namespace ftrun {

std::string instr_place(const Program& program, InstrId id) {
  return cat("instruction ", id, " (", instr_label(program.instr(id)), ")");
}

namespace {

/// Returns whether an instruction sums copies of a matrix on two stages, each of which has other
/// units beside it.
bool adds_copies_of_stages(const Program& program, const Instr& instr) {
  return instr.unit >= 0 && program.group(instr.group()).ranks.runs_within(kStageAxes);
}

/// Returns whether an instruction sums what each member holds of a whole: its place does not
/// matter.
bool adds_parts(const Program& program, const Instr& instr) {
  return program.group(instr.group()).ranks.runs_within(kReplicaAxes) &&
         std::any_of(program.groups.begin(), program.groups.end(), [&](const ProgramGroup& group) {
           return group.ranks.runs_within(kStateAxes);
         });
}

/// Writes what all members of a group must agree on when they meet in a collective: also where in
/// whole copies the ranges lie, which is the same on every rank. Where a rank's own part lies does
/// not matter here.
std::string announcement_of(const Program& program, const Instr& instr) {
  if (instr.is_transfer()) {
    const Range& range = instr.kind == InstrKind::kSend ? instr.reads[0] : instr.writes[0];
    // The two ranks may place their buffers differently, but both have the same value in them.
    std::string text("transfer ");
    text.append(dtype_name(instr.exchange().dtype)).append(" ").append(std::to_string(range.bytes));
    text.append(" of ")
        .append(program.at(range.buffer).name)
        .append("+")
        .append(std::to_string(range.offset));
    return text.append(" ")
        .append(std::to_string(instr.layer))
        .append(" ")
        .append(std::to_string(instr.micro_batch));
  }
  // append() instead of cat(), which takes several times as long: there are millions of these.
  std::string text(instr_name(instr.kind));
  text.append(" ").append(dtype_name(instr.exchange().dtype));
  if (instr.exchange().largest) text.append(" largest");
  if (instr.kind == InstrKind::kShift)
    text.append(" by ").append(std::to_string(instr.exchange().by));
  if (instr.kind == InstrKind::kCountedAllToAll)
    text.append(" rows of ").append(std::to_string(instr.exchange().row));
  for (const auto* ranges : {&instr.reads, &instr.writes})
    for (const Range& range : *ranges) text.append(" ").append(std::to_string(range.bytes));
  if (adds_copies_of_stages(program, instr))
    return text.append(" ")
        .append(category_name(program.at(instr.writes[0].buffer).category))
        .append(" of unit ")
        .append(std::to_string(instr.unit));
  const bool parts = adds_parts(program, instr);
  for (const Range& range : instr.kind == InstrKind::kReduceScatter ? instr.reads : instr.writes)
    text.append(" ")
        .append(program.at(range.buffer).name)
        .append("+")
        .append(std::to_string(parts ? 0 : range.offset));
  return text;
}

Course::Step step_of(const Program& program, InstrId id) {
  const Instr& instr = program.instr(id);
  return {.instr = id,
          .group = instr.group(),
          .if_finite = instr.if_finite,
          .decides = instr.kind == InstrKind::kDecide};
}

Course empty_course(const Program& program) {
  Course course;
  course.lanes.resize(static_cast<size_t>(lane_count(program)));
  return course;
}

void mark_used(Course& course) {
  for (size_t lane = 0; lane < course.lanes.size(); ++lane)
    if (!course.lanes[lane].empty()) course.used.push_back(static_cast<int32_t>(lane));
}

}  // namespace

Course whole_course(const Program& program, Announcements& announcements) {
  Course course = empty_course(program);
  // Counts the steps of its lane that are done when an instruction is.
  std::vector<int32_t> position(program.instrs.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    auto& lane = course.lanes[static_cast<size_t>(program.instrs[i].lane)];
    lane.push_back(step_of(program, static_cast<InstrId>(i)));
    position[i] = static_cast<int32_t>(lane.size());
  }
  for (auto& lane : course.lanes)
    for (Course::Step& step : lane) {
      const Instr& instr = program.instr(step.instr);
      step.first_wait = static_cast<int32_t>(course.waits.size());
      for (const InstrId wait : instr.waits)
        course.waits.push_back(
            {static_cast<int32_t>(program.instr(wait).lane), position[static_cast<size_t>(wait)]});
      step.end_wait = static_cast<int32_t>(course.waits.size());
      if (!instr.communicates()) continue;
      step.announced = announcements.number_of(
          instr.is_transfer() ? announcement_of(program, instr)
                              : cat(instr_label(instr), " ", static_cast<int>(instr.lane), " ",
                                    announcement_of(program, instr)));
    }
  mark_used(course);
  return course;
}

namespace {

/// Lanes of a collective_course(): its first one for all collectives.
size_t course_lane(const Program& program, size_t lane) {
  return is_link(program, static_cast<Lane>(lane)) ? lane : 0;
}

}  // namespace

Course collective_course(const Program& program, Announcements& announcements) {
  Course course = empty_course(program);
  const LaneClocks known = known_done(program);
  // Lists the instructions of each lane of the course, ascending.
  std::vector<std::vector<InstrId>> ids(course.lanes.size());
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (!instr.communicates()) continue;
    const size_t own = course_lane(program, static_cast<size_t>(instr.lane));
    LaneClock done = nothing_done(program);
    for (auto lane = static_cast<size_t>(Lane::kFirstGroup); lane < done.size(); ++lane) {
      InstrId& latest = done[course_lane(program, lane)];
      latest = std::max(latest, known[i][lane]);
    }
    Course::Step step{.instr = static_cast<InstrId>(i),
                      .group = instr.group(),
                      .announced = announcements.number_of(announcement_of(program, instr)),
                      .first_wait = static_cast<int32_t>(course.waits.size())};
    for (size_t lane = 0; lane < ids.size(); ++lane) {
      const auto steps =
          std::upper_bound(ids[lane].begin(), ids[lane].end(), done[lane]) - ids[lane].begin();
      if (lane != own && steps > 0)
        course.waits.push_back({static_cast<int32_t>(lane), static_cast<int32_t>(steps)});
    }
    step.end_wait = static_cast<int32_t>(course.waits.size());
    ids[own].push_back(static_cast<InstrId>(i));
    course.lanes[own].push_back(step);
  }
  mark_used(course);
  return course;
}

namespace {

/// Joining joins the steps of the lane of collectives.
class Joining {
 public:
  Joining(const Course& from, Announcements& announcements)
      : from_(from), announcements_(announcements), known_(from.lanes.size(), 0) {
    out_.lanes.resize(from.lanes.size());
    for (size_t lane = 1; lane < from.lanes.size(); ++lane)
      for (const Course::Step& step : from.lanes[lane])
        for (const Course::Wait& wait : waits_of(step))
          if (wait.lane == 0) awaited_.insert(wait.steps);
  }

  Course run() {
    for (const Course::Step& step : from_.lanes[0]) add(step);
    for (size_t lane = 1; lane < from_.lanes.size(); ++lane)
      for (const Course::Step& step : from_.lanes[lane]) {
        Course::Step& copy = out_.lanes[lane].emplace_back(step);
        copy_waits(step, copy);
      }
    mark_used(out_);
    return std::move(out_);
  }

 private:
  std::span<const Course::Wait> waits_of(const Course::Step& step) const {
    return std::span(from_.waits)
        .subspan(static_cast<size_t>(step.first_wait),
                 static_cast<size_t>(step.end_wait - step.first_wait));
  }

  void add(const Course::Step& step) {
    std::vector<Course::Step>& steps = out_.lanes[0];
    bool waits = false;
    for (const Course::Wait& wait : waits_of(step)) {
      int32_t& known = known_[static_cast<size_t>(wait.lane)];
      waits |= wait.steps > std::exchange(known, std::max(known, wait.steps));
    }
    const auto before = static_cast<int32_t>(joined_.size());
    if (steps.empty() || steps.back().group != step.group || waits || awaited_.contains(before)) {
      Course::Step& copy = steps.emplace_back(step);
      copy_waits(step, copy);
    } else {
      int32_t& all = steps.back().announced;
      all = announcements_.number_of(std::to_string(all) + ", then " +
                                     std::to_string(step.announced));
    }
    joined_.push_back(static_cast<int32_t>(steps.size()));
  }

  void copy_waits(const Course::Step& from, Course::Step& to) {
    to.first_wait = static_cast<int32_t>(out_.waits.size());
    for (Course::Wait wait : waits_of(from)) {
      if (wait.lane == 0) wait.steps = joined_[static_cast<size_t>(wait.steps) - 1];
      out_.waits.push_back(wait);
    }
    to.end_wait = static_cast<int32_t>(out_.waits.size());
  }

  const Course& from_;
  Announcements& announcements_;
  Course out_;
  /// Counts of the lane's steps that others wait for.
  std::set<int32_t> awaited_;
  /// The number of joined steps up to each step of the lane, its own included.
  std::vector<int32_t> joined_;
  std::vector<int32_t> known_;
};

}  // namespace

Course joined(const Course& collectives, Announcements& announcements) {
  return Joining(collectives, announcements).run();
}

Walk::Walk(const World& world, std::span<const Course> courses)
    : world_(world), meetings_(world.groups.size()) {
  require(courses.size() == world.programs.size(), "there is a course for each program");
  size_t lanes = 0;
  for (const World::Rank& rank : world.ranks) {
    const Course& course = courses[static_cast<size_t>(rank.program)];
    ranks_.push_back({.course = &course, .first_lane = lanes});
    lanes += course.lanes.size();
  }
  lanes_.resize(lanes);
}

void Walk::begin(bool finite) {
  finite_ = finite;
  fault_.clear();
  ready_.clear();
  for (WalkedRank& rank : ranks_) rank.decided = false;
  std::fill(lanes_.begin(), lanes_.end(), LaneState());
  std::fill(meetings_.begin(), meetings_.end(), Meeting());
  for (size_t r = 0; r < ranks_.size(); ++r) advance_lanes(static_cast<int32_t>(r));
}

const Instr& Walk::instr(Turn turn) const {
  return world_.program_of(static_cast<size_t>(turn.rank)).instr(step(turn).instr);
}

std::span<const int32_t> Walk::members(const Turn& turn) const {
  const Course::Step& now = step(turn);
  if (now.group == kNoGroup || !takes_part(now)) return {&turn.rank, 1};
  const int32_t group = world_.group_of(static_cast<size_t>(turn.rank), now.group);
  return world_.groups[static_cast<size_t>(group)].members;
}

bool Walk::waits_done(const WalkedRank& rank, const Course::Step& step) const {
  for (int32_t w = step.first_wait; w < step.end_wait; ++w) {
    const Course::Wait& wait = rank.course->waits[static_cast<size_t>(w)];
    if (lane_at(rank, wait.lane).next < wait.steps) return false;
  }
  return true;
}

/// Advances the lanes of a rank that may go on now.
void Walk::advance_lanes(int32_t number) {
  WalkedRank& rank = at(number);
  for (const int32_t lane : rank.course->used) {
    const Turn turn{number, lane};
    if (has_arrived(turn) || at_end(turn) || !waits_done(rank, step(turn))) continue;
    lane_at(rank, lane).arrived = true;
    arrive(turn);
  }
}

void Walk::arrive(Turn turn) {
  const Course::Step& now = step(turn);
  if (now.if_finite && !at(turn.rank).decided)
    return set_fault(cat("rank ", number(turn), ": ", place(turn), " starts before the decision"));
  if (now.group != kNoGroup && takes_part(now)) return join_collective(turn, now.group);
  ready_.push_back(turn);
}

void Walk::join_collective(Turn turn, GroupId id) {
  const int32_t group = world_.group_of(static_cast<size_t>(turn.rank), id);
  if (group == World::kStranger)
    return set_fault(
        cat("rank ", number(turn), " ", doing(turn), ", but is not a member of the group"));
  Meeting& meeting = meetings_[static_cast<size_t>(group)];
  if (meeting.arrived == 0)
    meeting.first = turn;
  else if (step(meeting.first).announced != step(turn).announced)
    return set_fault(difference(meeting.first, turn));
  const auto& members = world_.groups[static_cast<size_t>(group)].members;
  if (++meeting.arrived < static_cast<int32_t>(members.size())) return;
  meeting.arrived = 0;
  ready_.push_back(turn);
}

void Walk::finish(size_t which) {
  const Turn turn = ready_[which];
  ready_[which] = ready_.back();
  ready_.pop_back();
  const std::span<const int32_t> all = members(turn);
  if (all.size() == 1) return advance(turn);
  // All turns are marked first, because a rank that continues may reach the group again.
  std::vector<Turn>& turns = meeting_turns_;
  turns.clear();
  for (const int32_t member : all) turns.push_back(turn_of(member, turn));
  for (const Turn of_member : turns) advance(of_member);
}

/// Tries the turn's own lane first: most groups have the same lane on all their members.
Walk::Turn Walk::turn_of(int32_t member, Turn turn) const {
  if (step(turn).group == kNoGroup) return turn;
  const int32_t group = group_at(turn);
  if (is_at({member, turn.lane}, group)) return {member, turn.lane};
  for (const int32_t lane : at(member).course->used)
    if (is_at({member, lane}, group)) return {member, lane};
  bug("a member has not reached the collective of its group");
}

void Walk::advance(Turn turn) {
  WalkedRank& rank = at(turn.rank);
  rank.decided |= step(turn).decides;
  LaneState& lane = lane_at(rank, turn.lane);
  lane.arrived = false;
  ++lane.next;
  advance_lanes(turn.rank);
}

// The words for faults.

void Walk::set_fault(const std::string& fault) {
  if (fault_.empty()) fault_ = fault;
}

int Walk::number(Turn turn) const {
  return world_.ranks[static_cast<size_t>(turn.rank)].number;
}

std::string Walk::place(Turn turn) const {
  return instr_place(world_.program_of(static_cast<size_t>(turn.rank)), step(turn).instr);
}

std::string Walk::group_name(Turn turn) const {
  const auto rank = static_cast<size_t>(turn.rank);
  const GroupId id = step(turn).group;
  const int32_t group = world_.group_of(rank, id);
  return group == World::kStranger ? world_.program_of(rank).group(id).ranks.name()
                                   : world_.groups[static_cast<size_t>(group)].name;
}

/// Returns "instruction 14 (all_reduce unit 2) with 16384 bytes of gradients as F32 over
/// dp_shard@0".
std::string Walk::entry(Turn turn) const {
  const Program& program = world_.program_of(static_cast<size_t>(turn.rank));
  const Instr& now = instr(turn);
  int64_t bytes = 0;
  const std::vector<Range>& ranges = now.writes.empty() ? now.reads : now.writes;
  for (const Range& range : ranges) bytes += range.bytes;
  return cat(place(turn), " with ", bytes, " bytes of ", program.at(ranges[0].buffer).name, " as ",
             dtype_name(now.exchange().dtype), " over ", group_name(turn));
}

/// Describes what a rank does on a lane: "enters ...".
std::string Walk::doing(Turn turn) const {
  if (at_end(turn)) return "has no further collective";
  return has_arrived(turn) && step(turn).group != kNoGroup ? "enters " + entry(turn)
                                                           : "has not reached " + place(turn);
}

std::string Walk::difference(Turn one, Turn other) const {
  if (one.rank > other.rank) std::swap(one, other);
  const auto& instrs = world_.program_of(static_cast<size_t>(one.rank)).instrs;
  const bool transfer = instr(one).is_transfer();
  const auto before =
      std::count_if(instrs.begin(), instrs.begin() + step(one).instr, [&](const Instr& earlier) {
        return earlier.communicates() && earlier.is_transfer() == transfer;
      });
  return cat(transfer ? "transfer " : "collective ", before, ": rank ", number(one), " ",
             doing(one), ", rank ", number(other), " ", doing(other));
}

/// Finds the first member for which a rank waits that has reached a collective.
Walk::Turn Walk::missing(Turn turn) const {
  const int32_t group = group_at(turn);
  for (const int32_t member : members(turn)) {
    const WalkedRank& rank = at(member);
    const auto has_entered = [&](int32_t lane) { return is_at({member, lane}, group); };
    if (std::any_of(rank.course->used.begin(), rank.course->used.end(), has_entered)) continue;
    // The result is the rank's lane for the group, or lane 0 if the rank has no steps on that lane.
    const auto& groups = world_.ranks[static_cast<size_t>(member)].groups;
    const auto known = std::find(groups.begin(), groups.end(), group);
    // The rank's program may not know the group.
    if (known == groups.end()) return {member, turn.lane};
    const auto lane = static_cast<int32_t>(lane_of(static_cast<GroupId>(known - groups.begin())));
    return {member, steps(rank, lane).empty() ? 0 : lane};
  }
  bug("a collective to which all have come waits");
}

/// Finds, for a step that is not ready, a lane of its rank that has not yet done what the step
/// waits for.
Walk::Turn Walk::held_by(Turn turn) const {
  const WalkedRank& rank = at(turn.rank);
  const Course::Step& now = step(turn);
  for (int32_t w = now.first_wait; w < now.end_wait; ++w) {
    const Course::Wait& wait = rank.course->waits[static_cast<size_t>(w)];
    if (lane_at(rank, wait.lane).next < wait.steps) return {turn.rank, wait.lane};
  }
  bug("a step whose waits are done has come");
}

/// Describes which ranks wait for which, from the first rank that has not reached its end: a ring
/// of ranks that wait for each other, or a rank that never arrives.
std::string Walk::stalled() const {
  const auto unfinished = [&]() -> std::optional<Turn> {
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (const int32_t lane : ranks_[r].course->used)
        if (const Turn turn{static_cast<int32_t>(r), lane}; !at_end(turn)) return turn;
    return std::nullopt;
  };
  std::optional<Turn> turn = unfinished();
  if (!turn) return "";
  std::set<std::pair<int32_t, int32_t>> seen;
  std::optional<Turn> waits;
  while (!at_end(*turn) && seen.emplace(turn->rank, turn->lane).second) {
    if (has_arrived(*turn)) waits = turn;
    turn = has_arrived(*turn) ? missing(*turn) : held_by(*turn);
  }
  // The path is a cycle from the turn that it returns to; the cycle lies within one rank where
  // waits do not point backwards.
  if (!at_end(*turn)) {
    const Turn round = *turn;
    while (!has_arrived(*turn)) {
      turn = held_by(*turn);
      if (turn->rank == round.rank && turn->lane == round.lane && !has_arrived(round))
        return cat("rank ", number(round), " ", doing(round));
    }
    waits = turn;
  }
  const Turn other = missing(*waits);
  return cat("rank ", number(*waits), " ", doing(*waits), " and waits for rank ", number(other),
             ", which ", doing(other));
}

std::string Walk::fault() const {
  return !fault_.empty() || !ready_.empty() ? fault_ : stalled();
}

namespace {

std::string walk_to_the_end(const World& world, const std::vector<Course>& courses) {
  Walk walk(world, courses);
  walk.begin();
  while (!walk.has_fault() && !walk.ready().empty()) walk.finish(walk.ready().size() - 1);
  return walk.fault();
}

}  // namespace

std::vector<int32_t> course_numbers(std::span<const Course> courses) {
  Numbering<std::map<std::vector<int32_t>, int32_t>> known;
  std::vector<int32_t> numbers;
  for (const Course& course : courses) {
    std::vector<int32_t> key;
    for (const int32_t lane : course.used) {
      const auto& steps = course.lanes[static_cast<size_t>(lane)];
      key.insert(key.end(), {lane, static_cast<int32_t>(steps.size())});
      for (const Course::Step& step : steps) {
        key.insert(key.end(), {step.group, step.announced, step.if_finite ? 1 : 0,
                               step.decides ? 1 : 0, step.end_wait - step.first_wait});
        for (int32_t w = step.first_wait; w < step.end_wait; ++w)
          key.insert(key.end(), {course.waits[static_cast<size_t>(w)].lane,
                                 course.waits[static_cast<size_t>(w)].steps});
      }
    }
    numbers.push_back(known.number_of(std::move(key)));
  }
  return numbers;
}

std::string walk_collectives(const World& world) {
  Announcements announcements;
  std::vector<Course> courses;
  std::vector<Course> runs;
  for (const Program* program : world.programs) {
    courses.push_back(collective_course(*program, announcements));
    runs.push_back(joined(courses.back(), announcements));
  }
  const std::optional<World> folded = folded_world(world, course_numbers(runs));
  if (walk_to_the_end(folded ? *folded : world, runs).empty()) return "";
  // The folded, joined walk found a fault; the full walk over all ranks words it.
  return walk_to_the_end(world, courses);
}

}  // namespace ftrun
