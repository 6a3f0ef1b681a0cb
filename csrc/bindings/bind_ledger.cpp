// The directory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/errors.h"
#include "bindings/key_list.h"
#include "ledger/directory.h"
#include "storage/record.h"

namespace py = pybind11;

namespace kvo {

static_assert(kMostDiskKeyBytes == kMostRecordKeyBytes, "the ledger and the disk tier agree on what fits");

namespace {

py::str state_name(EntryState state) {
  switch (state) {
    case EntryState::filling:
      return "filling";
    case EntryState::ready:
      return "ready";
    default:
      return "absent";
  }
}

// (id, indexes of the accepted keys, slots), or None when there is nothing to do.
py::object planned(const PlannedJob& job) {
  if (job.id == 0) return py::none();
  return py::make_tuple(job.id, job.accepted, py::tuple(py::cast(job.slots)));
}

py::tuple bytes_of(const std::vector<std::string>& keys) {
  py::tuple list(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) list[i] = py::bytes(keys[i]);
  return list;
}

// (id, indexes of the accepted keys, host slots, disk slots, epoch), or None.
py::object promoted(const PlannedJob& job) {
  if (job.id == 0) return py::none();
  return py::make_tuple(job.id, job.accepted, py::tuple(py::cast(job.slots)), py::tuple(py::cast(job.disk_slots)),
                        job.epoch);
}

// (id, keys, host slots, disk slots, sequence of the first, epoch), or None.
py::object demoted(const PlannedJob& job) {
  if (job.id == 0) return py::none();
  return py::make_tuple(job.id, bytes_of(job.keys), py::tuple(py::cast(job.slots)), py::tuple(py::cast(job.disk_slots)),
                        job.sequence, job.epoch);
}

const char* name_of(JobKind kind) {
  switch (kind) {
    case JobKind::store:
      return "store";
    case JobKind::load:
      return "load";
    case JobKind::demote:
      return "demote";
    case JobKind::promote:
      return "promote";
  }
  return "";
}

// ([(group, slot) freed], [(group, slot, key, sequence) committed], epoch)
py::tuple disk_events(const DiskEvents& events) {
  py::list freed, committed;
  for (const SlotName& name : events.freed) freed.append(py::make_tuple(name.group, name.slot));
  for (const Record& record : events.committed)
    committed.append(py::make_tuple(record.name.group, record.name.slot, py::bytes(record.key), record.sequence));
  return py::make_tuple(freed, committed, events.epoch);
}

py::list finished(const std::vector<FinishedJob>& jobs) {
  py::list list;
  for (const FinishedJob& job : jobs) {
    list.append(py::make_tuple(job.id, name_of(job.kind), job.ok, job.late));
  }
  return list;
}

py::list group_dicts(const std::vector<GroupStats>& groups) {
  py::list list;
  for (const GroupStats& group : groups) {
    py::dict dict;
    dict["slot_bytes"] = group.slot_bytes;
    dict["capacity_slots"] = group.slots.capacity;
    dict["free_slots"] = group.slots.free;
    dict["used_slots"] = group.slots.used();
    dict["quarantined_slots"] = group.slots.quarantined;
    dict["ready_keys"] = group.ready_keys;
    dict["filling_keys"] = group.filling_keys;
    list.append(dict);
  }
  return list;
}

void add_counters(py::dict& dict, const DirectoryCounters& counters) {
  dict["lookup_keys"] = counters.lookup_keys;
  dict["hit_keys"] = counters.hit_keys;
  dict["disk_hit_keys"] = counters.disk_hit_keys;
  dict["accepted_keys"] = counters.accepted_keys;
  dict["skipped_keys"] = counters.skipped_keys;
  dict["dropped_keys"] = counters.dropped_keys;
  dict["stored_keys"] = counters.stored_keys;
  dict["promoted_keys"] = counters.promoted_keys;
  dict["demoted_keys"] = counters.demoted_keys;
  dict["undemoted_keys"] = counters.undemoted_keys;
  dict["unadmitted_keys"] = counters.unadmitted_keys;
  dict["over_budget_keys"] = counters.over_budget_keys;
  dict["evicted_keys"] = counters.evicted_keys;
  dict["disk_evicted_keys"] = counters.disk_evicted_keys;
  dict["failed_keys"] = counters.failed_keys;
  dict["forgotten_keys"] = counters.forgotten_keys;
  dict["store_jobs"] = counters.store_jobs;
  dict["load_jobs"] = counters.load_jobs;
  dict["demote_jobs"] = counters.demote_jobs;
  dict["promote_jobs"] = counters.promote_jobs;
  dict["failed_jobs"] = counters.failed_jobs;
  dict["expired_jobs"] = counters.expired_jobs;
  dict["abandoned_jobs"] = counters.abandoned_jobs;
  dict["late_reports"] = counters.late_reports;
  dict["unknown_reports"] = counters.unknown_reports;
}

void add_tier(py::dict& dict, const TierStats& tier) {
  dict["serving"] = tier.serving;
  dict["tier_off"] = tier.off;
  dict["ready_bytes"] = tier.ready_bytes;
  dict["used_bytes"] = tier.used_bytes;
  dict["quarantined_bytes"] = tier.quarantined_bytes;
  dict["free_extents"] = tier.free_extents;
  std::int64_t capacity_slots = 0, free_slots = 0, ready_keys = 0, filling_keys = 0;
  for (const GroupStats& group : tier.groups) {
    capacity_slots += group.slots.capacity;
    free_slots += group.slots.free;
    ready_keys += group.ready_keys;
    filling_keys += group.filling_keys;
  }
  dict["capacity_slots"] = capacity_slots;
  dict["free_slots"] = free_slots;
  dict["ready_keys"] = ready_keys;
  dict["filling_keys"] = filling_keys;
  dict["groups"] = group_dicts(tier.groups);
}

// The host tier's gauges stand beside the counters, the disk's under "disk".
py::dict stats_dict(const DirectoryStats& stats) {
  py::dict dict, disk;
  add_counters(dict, stats.counters);
  dict["epoch"] = stats.epoch;
  dict["jobs_in_flight"] = stats.jobs_in_flight;
  dict["given_up_jobs"] = stats.given_up_jobs;
  dict["holds"] = stats.holds;
  dict["waiting_for_disk_keys"] = stats.waiting_for_disk_keys;
  add_tier(dict, stats.host);
  add_tier(disk, stats.disk);
  dict["disk"] = disk;
  return dict;
}

}  // namespace

void bind_disk(py::class_<Directory>& directory) {
  directory
      .def(
          "open_disk",
          [](Directory& self, std::int64_t disk_bytes, std::int64_t epoch, std::int64_t next_sequence) {
            throw_if_error(self.open_disk(disk_bytes, epoch, next_sequence));
          },
          py::arg("disk_bytes"), py::arg("epoch"), py::arg("next_sequence"))
      .def(
          "restore",
          [](Directory& self, int group, std::int64_t slot, const py::bytes& key, std::int64_t sequence) {
            return self.restore({{group, slot}, std::string(key), sequence});
          },
          py::arg("group"), py::arg("slot"), py::arg("key"), py::arg("sequence"))
      .def("plan_promote",
           [](Directory& self, int group, const py::object& keys, double deadline_seconds) {
             return promoted(with_keys(
                 keys, [&](Directory::Keys views) { return self.plan_promote(group, views, deadline_seconds); }));
           })
      .def("plan_demote",
           [](Directory& self, int group, std::int64_t most, double now_seconds, double deadline_seconds) {
             return demoted(self.plan_demote(group, most, now_seconds, deadline_seconds));
           })
      .def("take_disk_events", [](Directory& self) { return disk_events(self.take_disk_events()); });
}

void bind_ledger(py::module_& m) {
  using Reports = std::vector<std::tuple<std::int64_t, bool, std::vector<std::int64_t>, std::vector<std::int64_t>>>;
  py::class_<Directory> directory(m, "Directory", "Key -> slots, owners and jobs of both tiers; see kvoffload.Ledger.");
  bind_disk(directory);
  directory
      .def(py::init([](int ranks, const std::string& name, std::string policy, std::int64_t disk_writes_per_day) {
             const std::optional<Admission> admission = admission_named(name);
             if (!admission)
               throw_error({Code::invalid, "admission = '" + name + "': give all, second_touch or tinylfu"});
             return std::make_unique<Directory>(ranks, *admission, std::move(policy), disk_writes_per_day);
           }),
           py::arg("ranks"), py::arg("admission") = "all", py::arg("policy") = "adaptive",
           py::arg("disk_writes_per_day") = 0)
      .def(
          "open",
          [](Directory& self, std::int64_t host_bytes, std::vector<std::int64_t> slot_bytes) {
            throw_if_error(self.open(host_bytes, slot_bytes));
          },
          py::arg("host_bytes"), py::arg("slot_bytes"))
      .def("grow", &Directory::grow, py::arg("ready_bytes"))
      .def("lookup",
           [](Directory& self, int group, const py::object& keys) {
             const auto hits = with_keys(keys, [&](Directory::Keys views) { return self.lookup(group, views); });
             return std::pair(hits.host, hits.disk);
           })
      .def(
          "states",
          [](const Directory& self, int group, const py::object& keys, bool on_disk) {
            py::list names;
            for (EntryState state :
                 with_keys(keys, [&](Directory::Keys views) { return self.states(group, views, on_disk); })) {
              names.append(state_name(state));
            }
            return names;
          },
          py::arg("group"), py::arg("keys"), py::arg("on_disk") = false)
      .def("plan_store",
           [](Directory& self, int group, const py::object& keys, double deadline_seconds) {
             return planned(with_keys(
                 keys, [&](Directory::Keys views) { return self.plan_store(group, views, deadline_seconds); }));
           })
      .def("plan_load",
           [](Directory& self, int group, const py::object& keys, double deadline_seconds) {
             return planned(with_keys(
                 keys, [&](Directory::Keys views) { return self.plan_load(group, views, deadline_seconds); }));
           })
      .def("hold",
           [](Directory& self, int group, const py::object& keys) {
             return with_keys(keys, [&](Directory::Keys views) { return self.hold(group, views); });
           })
      .def("release", &Directory::release, py::arg("hold"), py::call_guard<py::gil_scoped_release>())
      .def("forget",
           [](Directory& self, int group, const py::object& keys) {
             return with_keys(keys, [&](Directory::Keys views) { return self.forget(group, views); });
           })
      .def("reset", &Directory::reset, py::call_guard<py::gil_scoped_release>())
      .def("report",
           [](Directory& self, int rank, const Reports& given) {
             std::vector<Report> reports;
             for (const auto& [job, ok, failed, untried] : given) reports.push_back({job, ok, failed, untried});
             return finished(self.report(rank, reports));
           })
      .def("expire", [](Directory& self, double now_seconds) { return finished(self.expire(now_seconds)); })
      .def("abandon", [](Directory& self, std::int64_t job) { throw_if_error(self.abandon(job)); })
      .def_property_readonly("tier_off", &Directory::tier_off)
      .def("stats", [](const Directory& self) { return stats_dict(self.stats()); })
      .def(
          "check", [](const Directory& self) { return self.check().message(); },
          "The first broken invariant; empty when all hold.");
}

}  // namespace kvo
