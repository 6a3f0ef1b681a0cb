// The engine's ring and lanes, and measuring what each path takes here.
#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "transfer/engine.h"

namespace kvo {

namespace {

constexpr std::int64_t kLeastRingBytes = 32 * MiB;
constexpr std::int64_t kShareOfFreeMemory = 8;  // the ring takes at most one part in so many

// What calibration copies.
constexpr std::array<std::int64_t, 5> kSpanBytes{4 * KiB, 16 * KiB, 64 * KiB, 512 * KiB, 2 * MiB};
constexpr std::int64_t kChunkBytes = 512 * KiB, kContiguousBytes = 16 * MiB;
constexpr std::int64_t kMostPages = 8192;
constexpr int kLeastRounds = 3, kMostRounds = 6;
constexpr double kSettled = 1.1;  // the second least sample over the least
constexpr auto kSampleTime = std::chrono::seconds(2);

// The groups that calibration copies stand behind those of the layout: pages in a half of the ring, one group for each
// page size and last one for large copies.
std::vector<GroupGeometry> with_calibration(std::vector<GroupGeometry> groups, std::byte* half, std::int64_t bytes) {
  const auto add = [&](std::int64_t page_bytes, std::int64_t per_chunk) {
    GroupGeometry group;
    group.pages = {{reinterpret_cast<std::uintptr_t>(half), page_bytes, page_bytes}};
    group.num_blocks = bytes / page_bytes;
    group.blocks_per_chunk = per_chunk;
    groups.push_back(group);
  };
  for (const std::int64_t page_bytes : kSpanBytes) add(page_bytes, std::max<std::int64_t>(kChunkBytes / page_bytes, 1));
  add(kContiguousBytes, 1);
  return groups;
}

ExtentPlan with_slots_of(ExtentPlan extents, const std::vector<GroupGeometry>& groups) {
  for (std::size_t i = extents.slot_bytes.size(); i < groups.size(); ++i)
    extents.slot_bytes.push_back(groups[i].slot_bytes());
  return extents;
}

// Less where little device memory is free; null where it would be too small to be of use.
std::shared_ptr<DeviceMemory> make_ring(Device& device, std::int64_t& bytes) {
  while (bytes > device.free_bytes() / kShareOfFreeMemory) bytes /= 2;
  for (; bytes >= kLeastRingBytes; bytes /= 2)
    if (auto memory = device.allocate(bytes); memory.ok()) return std::move(*memory);
  bytes = 0;
  return nullptr;
}

}  // namespace

Status Engine::make_lanes(const EngineOptions& options) {
  ring_bytes_ = options.ring_bytes;
  const std::shared_ptr<DeviceMemory> ring = make_ring(*device_, ring_bytes_);
  const std::int64_t half_bytes = round_down(ring_bytes_ / 2, kSlotAlign);
  std::int64_t largest_chunk = 0;
  for (const GroupGeometry& group : groups_) largest_chunk = std::max(largest_chunk, group.payload_bytes());
  for (const Direction direction : {Direction::store, Direction::load}) {
    LaneOptions lane_options{direction, groups_, extents_, arena_->base(), kPieceBytes, options.queue_depth};
    lane_options.kernel_ctas = options.kernel_ctas, lane_options.urgency = options.urgency;
    std::unique_ptr<Staging> staging;
    if (ring) {
      const std::int64_t offset = direction == Direction::store ? 0 : half_bytes;
      auto made =
          Staging::create(*device_, options.staging, {ring, ring->address() + offset, half_bytes}, largest_chunk);
      if (!made.ok()) return made.status();
      staging = std::move(*made);
      lane_options.groups = with_calibration(groups_, ring->address() + half_bytes - offset, half_bytes);
      lane_options.extents = with_slots_of(extents_, lane_options.groups);
    }
    auto made = Lane::create(device_, std::move(lane_options), std::move(staging));
    if (!made.ok()) return made.status();
    lane(direction) = std::move(*made);
  }
  return {};
}

void Engine::set_path_table(const std::vector<PathRow>& rows) {
  for (auto& each : lanes_) each->set_path_table(PathTable(rows));
}

struct Engine::Sample {
  Direction direction;
  std::size_t group;  // of the calibration groups
  std::int64_t page_bytes, pages, per_chunk;
  Path path;
  double least = 0, second = 0;  // seconds from the call until the bytes are there; 0: not measured

  void note(double seconds) {
    second = least == 0 || seconds < least ? least : second == 0 ? seconds : std::min(second, seconds);
    least = least == 0 ? seconds : std::min(least, seconds);
  }
  bool settled() const { return second > 0 && second <= kSettled * least; }
};

// The least that two rounds agree on, more or less: what a path can do, whatever the machine did meanwhile. A round is
// one of each sample, so that what slows the machine for a moment hits one round of many samples and not all of one.
Status Engine::measure(std::vector<Sample>& samples) {
  for (int round = 0; round <= kMostRounds; ++round) {
    for (Sample& sample : samples) {
      if (round > kLeastRounds && sample.settled()) continue;
      auto seconds = measure_once(sample);
      if (!seconds.ok()) return seconds.status();
      if (round > 0 && *seconds > 0) sample.note(*seconds);  // the first one warms up
    }
  }
  return {};
}

// 0 where the arena has no room for it yet.
Result<double> Engine::measure_once(const Sample& sample) {
  if (ring_bytes_ == 0) return 0.0;
  Lane& chosen = *lane(sample.direction);
  const int group = static_cast<int>(groups_.size() + sample.group);
  const std::int64_t chunks = sample.pages / sample.per_chunk;
  const std::int64_t slots = chosen.ready_slots(group, arena_->ready_bytes());
  if (chunks == 0 || slots < chunks || !chosen.can_take(sample.path, group)) return 0.0;
  std::mt19937 random(1);
  std::vector<std::uint32_t> blocks(ring_bytes_ / 2 / sample.page_bytes), places(slots);
  std::iota(blocks.begin(), blocks.end(), 0), std::iota(places.begin(), places.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random), std::shuffle(places.begin(), places.end(), random);
  auto reached = marks_->take();  // never recorded: nothing to wait for
  if (!reached.ok()) return reached.status();
  auto transfer = std::make_shared<Transfer>();
  transfer->group = group, transfer->asked_path = sample.path, transfer->after = *reached;
  transfer->ids = chosen.ids().take(chunks * sample.per_chunk, chunks);
  std::copy_n(blocks.begin(), transfer->ids.blocks.count, transfer->ids.blocks.ids.get());
  std::copy_n(places.begin(), transfer->ids.slots.count, transfer->ids.slots.ids.get());
  const auto start = std::chrono::steady_clock::now();
  KVO_TRY(chosen.submit(transfer));
  while (!chosen.done(*transfer))
    if (std::chrono::steady_clock::now() - start > kSampleTime)
      return Status(Code::timeout, "a copy to measure a path took over 2 s");
  if (!transfer->result.status.ok()) return transfer->result.status;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<std::vector<PathRow>> Engine::calibrate() {
  KVO_TRY(usable());
  std::vector<PathRow> rows;
  // All or nothing: with the large transfers left out, small ones would be taken for the measure of all.
  if (ring_bytes_ == 0) return rows;
  if (lane(Direction::store)->ready_slots(static_cast<int>(groups_.size()), arena_->ready_bytes()) * kChunkBytes <
      ring_bytes_ / 2)
    return rows;
  std::vector<Sample> samples;
  for (const Direction direction : {Direction::store, Direction::load}) {
    for (std::size_t group = 0; group < kSpanBytes.size(); ++group) {
      const std::int64_t page_bytes = kSpanBytes[group],
                         per_chunk = std::max<std::int64_t>(kChunkBytes / page_bytes, 1);
      const std::int64_t most = std::min(kMostPages, round_down(ring_bytes_ / 2, kChunkBytes) / page_bytes);
      const std::int64_t few = round_up(std::min<std::int64_t>(64, most / 2), per_chunk);
      for (const std::int64_t pages : std::set{few, std::clamp(most / 4, few, most), most})
        for (const Path path : kPaths)
          samples.push_back({direction, group, page_bytes, round_down(pages, per_chunk), per_chunk, path});
    }
  }
  KVO_TRY(measure(samples));
  for (const Sample& sample : samples)
    if (sample.least > 0)
      rows.push_back({sample.direction, sample.page_bytes, sample.pages, sample.path, sample.least});
  return rows;
}

Result<double> Engine::contiguous_bytes_per_s(Direction direction) {
  KVO_TRY(usable());
  const std::int64_t pages = ring_bytes_ / 2 / kContiguousBytes;
  std::vector<Sample> samples{{direction, kSpanBytes.size(), kContiguousBytes, pages, 1, Path::dma}};
  KVO_TRY(measure(samples));
  const double seconds = samples.front().least;
  return seconds > 0 ? static_cast<double>(pages * kContiguousBytes) / seconds : 0.0;
}

}  // namespace kvo
