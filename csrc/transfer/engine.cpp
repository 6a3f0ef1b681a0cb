#include "transfer/engine.h"

namespace kvo {

namespace {

constexpr std::size_t kAnnouncedIds = 1024;  // checking so many takes about as long as waking a thread

std::vector<std::int64_t> slot_bytes_of(const std::vector<GroupGeometry>& groups) {
  std::vector<std::int64_t> bytes;
  for (const GroupGeometry& group : groups) bytes.push_back(group.slot_bytes());
  return bytes;
}

// Lanes whose thread and copies may outlive everybody.
void keep_for_ever(std::shared_ptr<Lane> lane) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<Lane>>;  // not destroyed when the process ends
  std::lock_guard lock(mutex);
  kept.push_back(std::move(lane));
}

}  // namespace

Engine::Engine(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena, std::vector<GroupGeometry> groups)
    : device_(std::move(device)),
      arena_(std::move(arena)),
      groups_(std::move(groups)),
      extents_(plan_extents(arena_->bytes(), slot_bytes_of(groups_))),
      check_(groups_, extents_, arena_->bytes()) {}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena,
                                               std::vector<GroupGeometry> groups, const EngineOptions& options) {
  for (const GroupGeometry& group : groups)
    if (group.num_blocks > INT32_MAX || arena->bytes() / kSlotAlign > INT32_MAX)
      return Status(Code::invalid, std::to_string(group.num_blocks) + " blocks and " + std::to_string(arena->bytes()) +
                                       " bytes of host memory: at most 2^31 - 1 blocks and slots");
  std::unique_ptr<Engine> engine(new Engine(std::move(device), std::move(arena), std::move(groups)));
  if (!engine->check_.usable()) return Status(Code::memory, "no memory for a table of block ids");
  auto marks = EventPool::create(engine->device_, /*timed=*/false, 2 * options.queue_depth);
  if (!marks.ok()) return marks.status();
  engine->marks_ = std::move(*marks);
  KVO_TRY(engine->make_lanes(options));
  return engine;
}

Engine::~Engine() {
  if (owner_.forked()) return;
  (void)close(std::chrono::steady_clock::now() + std::chrono::seconds(5));
}

Status Engine::usable() const {
  KVO_TRY(owner_.check("this mover"));
  if (closed_) return Status(Code::closed, "this mover was closed");
  return {};
}

Result<std::shared_ptr<Event>> Engine::mark(StreamHandle stream) {
  KVO_TRY(usable());
  auto event = marks_->take();
  if (event.ok()) KVO_TRY(device_->record(**event, stream));
  return event;
}

Status Engine::check_path(const Lane& lane, std::optional<Path> path, int group) const {
  if (!path || group < 0 || group >= static_cast<int>(groups_.size()) || lane.can_take(*path, group)) return {};
  std::string usable;
  for (const Path each : kPaths)
    if (lane.can_take(each, group)) usable += (usable.empty() ? "" : ", ") + std::string(name_of(each, is_cuda()));
  return Status(Code::invalid, "path '" + std::string(name_of(*path, is_cuda())) + "' cannot take chunks of group " +
                                   std::to_string(group) + " (" + human_bytes(groups_[group].payload_bytes()) + " in " +
                                   std::to_string(groups_[group].blocks_per_chunk) + " blocks, a ring of " +
                                   human_bytes(ring_bytes()) + "): use auto, " + usable);
}

Result<TransferHandle> Engine::submit(const Request& request, const SubmitOptions& options) {
  KVO_TRY(usable());
  if (request.blocks.size() > kAnnouncedIds) lane(options.direction)->announce();
  auto transfer = std::make_shared<Transfer>();
  transfer->job = options.job;
  transfer->group = request.group;
  transfer->skip_blocks = request.skip_blocks;
  std::lock_guard lock(mutex_);
  KVO_TRY(usable());
  const std::shared_ptr<Lane>& chosen = lane(options.direction);
  KVO_TRY(check_path(*chosen, options.path, request.group));
  transfer->asked_path = options.path;
  transfer->ids = chosen->ids().take(static_cast<std::int64_t>(request.blocks.size()),
                                     static_cast<std::int64_t>(request.slots.size()));
  KVO_TRY(check_.check(request, arena_->ready_bytes(), transfer->ids));
  transfer->after = options.after;
  if (!transfer->after) {
    auto marked = mark(options.stream);
    if (!marked.ok()) return marked.status();
    transfer->after = std::move(*marked);
  }
  KVO_TRY(chosen->submit(transfer));
  return TransferHandle{owner_, chosen, std::move(transfer), is_cuda()};
}

Result<std::vector<std::shared_ptr<Transfer>>> Engine::poll() {
  KVO_TRY(owner_.check("this mover"));
  std::vector<std::shared_ptr<Transfer>> finished;
  for (auto& each : lanes_) each->take_finished(finished);
  return finished;
}

Result<LaneStats> Engine::stats(Direction direction) {
  KVO_TRY(owner_.check("this mover"));
  return lane(direction)->stats();
}

Result<std::byte*> Engine::slot_address(int group, std::int64_t slot) const {
  KVO_TRY(usable());
  KVO_TRY(check_.check_slot(group, slot, arena_->ready_bytes()));
  return arena_->base() + extents_.offset_of(group, slot);
}

Status Engine::close(Deadline deadline) {
  KVO_TRY(owner_.check("this mover"));
  {
    std::lock_guard lock(mutex_);
    if (closed_.exchange(true)) return {};
  }
  Status drained;
  for (auto& each : lanes_)
    if (Status status = each ? each->drain(deadline) : Status(); !status.ok()) drained = status;
  if (drained.ok()) {
    for (auto& each : lanes_)
      if (each) each->stop();
    arena_->close();
    return {};
  }
  for (auto& each : lanes_) {
    each->abandon();
    keep_for_ever(each);
  }
  arena_->leak();
  return drained;
}

}  // namespace kvo
