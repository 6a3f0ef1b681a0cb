// The manifest and the directory it lies in. Keys are Python bytes, read in place; the interpreter lock is given away
// for every call that reaches the file.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/namespace_dir.h"
#include "bindings/bindings.h"
#include "bindings/deadlines.h"
#include "bindings/errors.h"
#include "bindings/holders.h"
#include "bindings/without_gil.h"
#include "ledger/manifest.h"

namespace py = pybind11;

namespace kvo {
namespace {

using Slots = std::vector<std::int64_t>;

// One that does not exist has no data.
Status sync_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    auto file = real_files().open(path, OpenMode::existing);
    if (!file.ok()) return file.status();
    if (*file) KVO_TRY((*file)->sync());
  }
  return {};
}

std::shared_ptr<Manifest> open_manifest(std::string directory, std::string fingerprint, Slots slots,
                                        std::vector<std::string> data_files, double sync_seconds,
                                        std::int64_t compact_bytes, std::int64_t most_bytes) {
  ManifestOptions options;
  options.directory = std::move(directory);
  options.fingerprint = std::move(fingerprint);
  options.slots = std::move(slots);
  options.sync_data = [paths = std::move(data_files)] { return sync_files(paths); };
  options.sync_seconds = sync_seconds;
  options.compact_bytes = compact_bytes, options.most_bytes = most_bytes;
  std::optional<Result<std::unique_ptr<Manifest>>> manifest;
  {
    py::gil_scoped_release release;
    manifest.emplace(Manifest::open(std::move(options)));
  }
  return owned_by_python(value_or_throw(std::move(*manifest)));
}

py::dict opening_dict(Manifest& manifest) {
  const ManifestOpening opening = manifest.take_opening();
  py::list chunks;
  for (const CommittedChunk& chunk : opening.chunks) {
    chunks.append(py::make_tuple(chunk.group, py::bytes(chunk.key), chunk.slot, chunk.sequence));
  }
  py::dict dict;
  dict["chunks"] = chunks;
  dict["not_believed"] = opening.not_believed;
  dict["torn_bytes"] = opening.torn_bytes;
  dict["damaged_bytes"] = opening.damaged_bytes;
  dict["unsynced_chunks"] = opening.unsynced_chunks;
  dict["over_cap_commits"] = opening.over_cap_commits;
  return dict;
}

void commit(Manifest& manifest, std::int64_t epoch, int group, const std::vector<py::bytes>& keys, const Slots& slots,
            const Slots& sequences) {
  if (keys.size() != slots.size() || keys.size() != sequences.size()) {
    throw_error({Code::invalid, std::to_string(keys.size()) + " keys, " + std::to_string(slots.size()) + " slots and " +
                                    std::to_string(sequences.size()) + " sequences: one of each for a chunk"});
  }
  std::vector<ManifestCommit> commits;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    commits.push_back({static_cast<std::string_view>(keys[i]), slots[i], sequences[i]});
  }
  py::gil_scoped_release release;
  manifest.commit(epoch, group, commits);
}

py::dict stats_dict(const ManifestStats& stats) {
  py::dict dict;
  dict["bytes"] = stats.bytes;
  dict["epoch"] = stats.epoch;
  dict["commits"] = stats.commits;
  dict["frees"] = stats.frees;
  dict["stale_commits"] = stats.stale_commits;
  dict["dropped_records"] = stats.dropped_records;
  dict["undurable_records"] = stats.undurable_records;
  dict["syncs"] = stats.syncs;
  dict["failed_syncs"] = stats.failed_syncs;
  dict["compactions"] = stats.compactions;
  dict["failed_compactions"] = stats.failed_compactions;
  dict["off"] = stats.off;
  dict["failure"] = stats.failure;
  return dict;
}

// One of the calls that wait for the medium.
template <Status (Manifest::*call)(Manifest::Deadline)>
void wait_for(Manifest& manifest, double timeout_seconds) {
  without_gil([&] { return (manifest.*call)(deadline_in(timeout_seconds)); });
}

std::unique_ptr<NamespaceDir> open_namespace(const std::string& root, const std::string& fingerprint, int dp,
                                             const std::string& leaf, double timeout_seconds) {
  std::optional<Result<NamespaceDir>> dir;
  {
    py::gil_scoped_release release;
    dir.emplace(NamespaceDir::open(root, fingerprint, dp, leaf, deadline_in(timeout_seconds)));
  }
  return std::make_unique<NamespaceDir>(value_or_throw(std::move(*dir)));
}

py::dict make_room(const NamespaceDir& dir, std::int64_t own_bytes, std::int64_t cap_bytes, double timeout_seconds) {
  std::optional<Result<NamespaceDir::Room>> made;
  {
    py::gil_scoped_release release;
    made.emplace(dir.make_room(own_bytes, cap_bytes, deadline_in(timeout_seconds)));
  }
  const NamespaceDir::Room room = value_or_throw(std::move(*made));
  py::dict dict;
  dict["foreign_bytes"] = room.foreign_bytes;
  dict["removed_bytes"] = room.removed_bytes;
  dict["removed"] = room.removed;
  dict["in_use"] = room.in_use;
  return dict;
}

}  // namespace

void bind_manifest(py::module_& m) {
  m.def(
      "crc32c",
      [](const py::bytes& data, std::uint32_t before) {
        const auto view = static_cast<std::string_view>(data);
        return crc32c(view.data(), view.size(), before);
      },
      py::arg("data"), py::arg("before") = 0);
  py::class_<NamespaceDir>(m, "NamespaceDir")
      .def(py::init(&open_namespace), py::arg("root"), py::arg("fingerprint"), py::arg("dp"), py::arg("leaf"),
           py::arg("timeout_seconds"))
      .def_property_readonly("path", &NamespaceDir::path)
      .def("make_room", &make_room, py::arg("own_bytes"), py::arg("cap_bytes"), py::arg("timeout_seconds"));
  py::class_<Manifest, std::shared_ptr<Manifest>>(m, "Manifest")
      .def(py::init(&open_manifest), py::arg("directory"), py::arg("fingerprint"), py::arg("slots"), py::kw_only(),
           py::arg("data_files") = std::vector<std::string>(), py::arg("sync_seconds") = ManifestOptions().sync_seconds,
           py::arg("compact_bytes") = ManifestOptions().compact_bytes,
           py::arg("most_bytes") = ManifestOptions().most_bytes)
      .def_property_readonly("identity", &Manifest::identity)
      .def_property_readonly("first_sequence", &Manifest::first_sequence)
      .def("take_opening", &opening_dict)
      .def(
          "free", [](Manifest& self, int group, const Slots& slots) { self.free(group, slots); }, py::arg("group"),
          py::arg("slots"), py::call_guard<py::gil_scoped_release>())
      .def("commit", &commit, py::arg("epoch"), py::arg("group"), py::arg("keys"), py::arg("slots"),
           py::arg("sequences"))
      .def("reset", &wait_for<&Manifest::reset>, py::arg("timeout_seconds"))
      .def("flush", &wait_for<&Manifest::flush>, py::arg("timeout_seconds"))
      .def("close", &wait_for<&Manifest::close>, py::arg("timeout_seconds"))
      .def("stats", [](const Manifest& self) { return stats_dict(self.stats()); });
}

}  // namespace kvo
