// The disk tier: slots of an arena to records on disk and back. Jobs are named by slot numbers, as the ledger does.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/deadlines.h"
#include "bindings/errors.h"
#include "bindings/holders.h"
#include "bindings/without_gil.h"
#include "layout/extents.h"
#include "memory/arena.h"
#include "storage/disk_tier.h"

namespace py = pybind11;

namespace kvo {
namespace {

using Ints = std::vector<std::int64_t>;

// A tier, and where slots lie in memory and in the slab.
struct BoundDiskTier {
  std::shared_ptr<Arena> arena;
  ExtentPlan host, disk;
  Ints payload_bytes;
  std::unique_ptr<DiskTier> tier;
};

struct Options {
  std::vector<std::string> directories;
  std::string fingerprint;
  int rank;
  Ints slot_bytes, payload_bytes;
  std::int64_t cap_bytes;
  DiskTierOptions tier;
};

std::shared_ptr<BoundDiskTier> open_tier(std::shared_ptr<Arena> arena, Options options) {
  if (options.directories.empty()) throw_error({Code::invalid, "a disk tier needs a directory"});
  if (options.slot_bytes.empty() || options.slot_bytes.size() != options.payload_bytes.size() ||
      *std::min_element(options.slot_bytes.begin(), options.slot_bytes.end()) <= 0) {
    throw_error({Code::invalid, "slot_bytes and payload_bytes have one entry for each group"});
  }
  auto bound = std::make_unique<BoundDiskTier>();
  bound->arena = arena, bound->payload_bytes = options.payload_bytes;
  bound->host = plan_extents(arena->bytes(), options.slot_bytes);
  DiskTierOptions& tier = options.tier;
  tier.slab.plan = fit_slab(options.cap_bytes, options.slot_bytes, static_cast<int>(options.directories.size()),
                            [&](std::int64_t bytes) { return plan_extents(bytes, options.slot_bytes).extent_bytes; });
  bound->disk = {tier.slab.plan.extent_bytes, options.slot_bytes};
  tier.slab.directories = std::move(options.directories), tier.slab.fingerprint = std::move(options.fingerprint);
  tier.slab.rank = options.rank, tier.slab.cap_bytes = options.cap_bytes;
  tier.memory = arena->base(), tier.memory_bytes = arena->bytes();
  tier.memory_ready = [arena] { return arena->ready_bytes(); };
  tier.memory_owner = arena;
  std::optional<Result<std::unique_ptr<DiskTier>>> opened;
  {
    py::gil_scoped_release release;
    opened.emplace(DiskTier::open(std::move(tier)));
  }
  bound->tier = value_or_throw(std::move(*opened));
  return owned_by_python(std::move(bound));
}

[[noreturn]] void throw_bad_slot(const char* where, std::int64_t slot) {
  throw_error({Code::invalid, std::string("there is no slot ") + std::to_string(slot) + " " + where});
}

DiskJob make_job(const BoundDiskTier& self, DiskJobKind kind, std::int64_t id, int group, const Ints& slots,
                 const Ints& disk_slots, const std::vector<py::bytes>& keys) {
  if (group < 0 || static_cast<std::size_t>(group) >= self.payload_bytes.size()) {
    throw_error({Code::invalid, "there is no group " + std::to_string(group)});
  }
  if (slots.size() != disk_slots.size() || slots.size() != keys.size()) {
    throw_error({Code::invalid, std::to_string(slots.size()) + " slots, " + std::to_string(disk_slots.size()) +
                                    " disk_slots and " + std::to_string(keys.size()) + " keys: one of each a record"});
  }
  DiskJob job;
  job.id = id, job.kind = kind, job.group = group;
  job.slot_bytes = self.host.slot_bytes[group], job.payload_bytes = self.payload_bytes[group];
  const std::int64_t host_slots = self.host.slots_below(group, self.arena->bytes());
  const std::int64_t slab_slots = self.disk.slots_below(group, self.tier->bytes());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || slots[i] >= host_slots) throw_bad_slot("in host memory", slots[i]);
    if (disk_slots[i] < 0 || disk_slots[i] >= slab_slots) throw_bad_slot("on disk", disk_slots[i]);
    job.records.push_back({self.arena->base() + self.host.offset_of(group, slots[i]),
                           self.disk.offset_of(group, disk_slots[i]), static_cast<std::string>(keys[i])});
  }
  return job;
}

void submit(BoundDiskTier& self, DiskJob job, std::int64_t epoch, double timeout_seconds) {
  job.epoch = epoch, job.deadline = deadline_in(timeout_seconds);
  without_gil([&] { return self.tier->submit(std::move(job)); });
}

void demote(BoundDiskTier& self, std::int64_t id, int group, const Ints& slots, const Ints& disk_slots,
            const std::vector<py::bytes>& keys, std::int64_t sequence, std::int64_t epoch, double timeout_seconds) {
  DiskJob job = make_job(self, DiskJobKind::demote, id, group, slots, disk_slots, keys);
  for (DiskRecord& record : job.records) record.sequence = sequence++;
  submit(self, std::move(job), epoch, timeout_seconds);
}

void promote(BoundDiskTier& self, std::int64_t id, int group, const Ints& slots, const Ints& disk_slots,
             const std::vector<py::bytes>& keys, std::int64_t epoch, double timeout_seconds) {
  submit(self, make_job(self, DiskJobKind::promote, id, group, slots, disk_slots, keys), epoch, timeout_seconds);
}

py::list poll(BoundDiskTier& self) {
  py::list results;
  for (const DiskJobResult& result : self.tier->poll()) {
    results.append(
        py::make_tuple(result.id, result.bytes, result.seconds, result.error, result.failed, result.untried));
  }
  return results;
}

// A daemon thread may be here when the interpreter ends, and then ends where it wants the GIL back: in a destructor,
// such as gil_scoped_release's, that would end the process.
bool wait(BoundDiskTier& self, double timeout_seconds) {
  PyThreadState* state = PyEval_SaveThread();
  const bool any = self.tier->wait(deadline_in(timeout_seconds));
  PyEval_RestoreThread(state);
  return any;
}

py::dict outcomes(const std::array<std::int64_t, kDiskOutcomes.size()>& counts) {
  py::dict dict;
  for (std::size_t i = 0; i < counts.size(); ++i) dict[kDiskOutcomes[i]] = counts[i];
  return dict;
}

py::dict stats_dict(const BoundDiskTier& self) {
  const DiskStats stats = self.tier->stats();
  py::dict dict;
  dict["promotions"] = outcomes(stats.promotions);
  dict["demotions"] = outcomes(stats.demotions);
  dict["promoted_bytes"] = stats.promoted_bytes;
  dict["demoted_bytes"] = stats.demoted_bytes;
  dict["dropped"] = stats.dropped;
  dict["waiting_promotions"] = stats.waiting_promotions;
  dict["waiting_demotions"] = stats.waiting_demotions;
  dict["jobs"] = stats.jobs;
  dict["times_off"] = stats.times_off;
  dict["off"] = stats.off;
  dict["strays"] = stats.strays;
  dict["registered_bytes"] = stats.registered_bytes;
  return dict;
}

py::dict report_dict(const BoundDiskTier& self) {
  const DiskReport& report = self.tier->report();
  py::dict dict;
  dict["io"] = report.io;
  dict["io_note"] = report.note;
  dict["direct"] = report.slab.direct;
  dict["preallocated"] = report.slab.preallocated;
  dict["slab_note"] = report.slab.note;
  dict["depth"] = report.tuning.depth;
  dict["request_bytes"] = report.tuning.request_bytes;
  dict["read_bytes_per_second"] = report.tuning.read_bytes_per_second;
  dict["write_bytes_per_second"] = report.tuning.write_bytes_per_second;
  dict["slab_bytes"] = report.slab.disk_bytes;
  return dict;
}

}  // namespace

void bind_storage(py::module_& m) {
  py::class_<BoundDiskTier, std::shared_ptr<BoundDiskTier>>(m, "DiskTier")
      .def(py::init([](std::shared_ptr<Arena> arena, std::vector<std::string> directories, std::string fingerprint,
                       int rank, Ints slot_bytes, Ints payload_bytes, std::int64_t cap_bytes, std::string io,
                       int threads, int depth, std::int64_t request_bytes, bool network, std::int64_t most_waiting,
                       int most_failures, double retry_seconds) {
             Options options{std::move(directories),
                             std::move(fingerprint),
                             rank,
                             std::move(slot_bytes),
                             std::move(payload_bytes),
                             cap_bytes,
                             {}};
             options.tier.io = std::move(io), options.tier.threads = threads, options.tier.depth = depth;
             options.tier.request_bytes = request_bytes, options.tier.slab.network = network;
             options.tier.most_waiting = most_waiting, options.tier.most_failures = most_failures;
             options.tier.retry_seconds = retry_seconds;
             return open_tier(std::move(arena), std::move(options));
           }),
           py::arg("arena").none(false), py::arg("directories"), py::arg("fingerprint"), py::arg("rank"),
           py::arg("slot_bytes"), py::arg("payload_bytes"), py::arg("cap_bytes"), py::kw_only(),
           py::arg("io") = DiskTierOptions().io, py::arg("threads") = DiskTierOptions().threads,
           py::arg("depth") = DiskTierOptions().depth, py::arg("request_bytes") = DiskTierOptions().request_bytes,
           py::arg("network") = false, py::arg("most_waiting") = DiskTierOptions().most_waiting,
           py::arg("most_failures") = DiskTierOptions().most_failures,
           py::arg("retry_seconds") = DiskTierOptions().retry_seconds)
      .def_property_readonly("bytes", [](const BoundDiskTier& self) { return self.tier->bytes(); })
      .def_property_readonly("paths", [](const BoundDiskTier& self) { return self.tier->paths(); })
      .def_property_readonly("identity", [](const BoundDiskTier& self) { return self.tier->identity(); })
      .def("set_identity",
           [](BoundDiskTier& self, std::uint64_t identity) {
             without_gil([&] { return self.tier->set_identity(identity); });
           })
      .def("demote", &demote, py::arg("job"), py::arg("group"), py::arg("slots"), py::arg("disk_slots"),
           py::arg("keys"), py::arg("sequence"), py::arg("epoch"), py::arg("timeout_seconds"))
      .def("promote", &promote, py::arg("job"), py::arg("group"), py::arg("slots"), py::arg("disk_slots"),
           py::arg("keys"), py::arg("epoch"), py::arg("timeout_seconds"))
      .def("poll", &poll)
      .def("wait", &wait, py::arg("timeout_seconds"))
      .def("sync", [](BoundDiskTier& self) { without_gil([&] { return self.tier->sync(); }); })
      .def("stats", &stats_dict)
      .def("report", &report_dict)
      .def(
          "close",
          [](BoundDiskTier& self, double timeout_seconds) {
            without_gil([&] { return self.tier->close(deadline_in(timeout_seconds)); });
          },
          py::arg("timeout_seconds"));
}

}  // namespace kvo
