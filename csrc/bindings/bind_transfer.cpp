#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/deadlines.h"
#include "bindings/errors.h"
#include "bindings/holders.h"
#include "bindings/without_gil.h"
#include "transfer/engine.h"

namespace py = pybind11;

namespace kvo {

namespace {

using Ids = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

// Up to here a call is shorter than getting the GIL back may take.
constexpr std::size_t kKeepGilIds = 1024;

struct Mark {  // a point in a caller's stream
  std::shared_ptr<Event> event;
  bool on_cuda;
};

std::span<const std::int64_t> view(const Ids& ids) { return {ids.data(), static_cast<std::size_t>(ids.size())}; }

std::optional<Path> asked_path(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (const auto path = path_named(name)) return path;
  throw_error(Status(Code::invalid, "path '" + name + "': give auto, dma, kernel or staged"));
}

TransferHandle submit(Engine& engine, bool store, int group, const Ids& blocks, const Ids& slots,
                      std::int64_t skip_blocks, StreamHandle stream, const Mark* after, std::int64_t job,
                      const std::string& path) {
  if (after && after->on_cuda != engine.is_cuda())
    throw_error(Status(Code::invalid, "after: this mark was made by a mover of another kind of device"));
  const Request request{group, view(blocks), view(slots), skip_blocks};
  SubmitOptions options{store ? Direction::store : Direction::load, job, stream, after ? after->event : nullptr,
                        asked_path(path)};
  auto call = [&] { return engine.submit(request, options); };
  if (request.blocks.size() <= kKeepGilIds) return value_or_throw(call());
  std::optional<Result<TransferHandle>> submitted;
  {
    py::gil_scoped_release release;
    submitted.emplace(call());
  }
  return value_or_throw(std::move(*submitted));
}

void check_owner(const TransferHandle& handle) { throw_if_error(handle.owner.check("this transfer")); }

py::object result_of(const TransferHandle& handle) {
  check_owner(handle);
  if (!handle.lane->done(*handle.transfer)) return py::none();
  const TransferResult& result = handle.transfer->result;
  return py::make_tuple(result.ok, result.bytes, result.seconds, name_of(result.choice.path, handle.is_cuda),
                        result.status.message(), explain(result.choice, handle.is_cuda));
}

py::list poll(Engine& engine) {
  py::list out;
  for (const auto& transfer : value_or_throw(engine.poll())) {
    const TransferResult& result = transfer->result;
    out.append(py::make_tuple(transfer->job, result.ok, result.bytes, result.seconds, result.status.message()));
  }
  return out;
}

py::dict stats_of(Engine& engine, Direction direction) {
  const LaneStats stats = value_or_throw(engine.stats(direction));
  py::dict out;
  out["transfers"] = stats.transfers;
  out["failures"] = stats.failures;
  out["bytes"] = stats.bytes;
  out["seconds"] = stats.seconds;
  out["rejected"] = stats.rejected;
  out["unfinished"] = stats.unfinished;
  return out;
}

// In slices, so that Ctrl-C is seen.
void wait_interruptibly(TransferHandle& handle, double timeout_seconds) {
  constexpr auto kSlice = std::chrono::milliseconds(100);
  const Deadline deadline = deadline_in(timeout_seconds);
  for (;;) {
    Status status;
    {
      py::gil_scoped_release release;
      status = handle.lane->wait(*handle.transfer, std::min(deadline, std::chrono::steady_clock::now() + kSlice));
    }
    if (status.code() != Code::timeout || std::chrono::steady_clock::now() >= deadline) return throw_if_error(status);
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// For sweeps of benchmarks; names as in EngineOptions and StagingOptions.
EngineOptions options_of(std::int64_t queue_depth, std::int64_t ring_bytes, const py::dict& tuning) {
  EngineOptions options;
  options.queue_depth = queue_depth, options.ring_bytes = ring_bytes;
  const auto take = [&](const char* name, auto& value) {
    if (tuning.contains(name)) value = tuning[name].cast<std::decay_t<decltype(value)>>();
  };
  take("piece_bytes", options.staging.piece_bytes);
  take("small_piece_bytes", options.staging.small_piece_bytes);
  take("ring_ctas", options.staging.ctas);
  take("kernel_ctas", options.kernel_ctas);
  bool urgent = options.urgency == Urgency::high;
  take("urgent", urgent);
  options.urgency = urgent ? Urgency::high : Urgency::normal;
  return options;
}

std::shared_ptr<Engine> make_engine(std::shared_ptr<Device> device, std::shared_ptr<Arena> arena,
                                    std::vector<GroupGeometry> groups, const EngineOptions& options) {
  std::unique_ptr<Engine> engine;
  without_gil([&] {
    auto made = Engine::create(std::move(device), std::move(arena), std::move(groups), options);
    if (made.ok()) engine = std::move(*made);
    return made.status();
  });
  return owned_by_python(std::move(engine));
}

using Row = std::tuple<bool, std::int64_t, std::int64_t, std::string, double>;

std::vector<Row> calibrate(Engine& engine) {
  std::vector<PathRow> measured;
  without_gil([&] {
    auto rows = engine.calibrate();
    if (rows.ok()) measured = std::move(*rows);
    return rows.status();
  });
  std::vector<Row> rows;
  for (const PathRow& row : measured)
    rows.emplace_back(row.direction == Direction::store, row.span_bytes, row.spans, name_of(row.path, engine.is_cuda()),
                      row.seconds);
  return rows;
}

void set_path_table(Engine& engine, const std::vector<Row>& rows) {
  std::vector<PathRow> table;
  for (const auto& [store, span_bytes, spans, name, seconds] : rows) {
    const auto path = asked_path(name);
    if (!path) throw_error(Status(Code::invalid, "a row of the path table names no path"));
    table.push_back({store ? Direction::store : Direction::load, span_bytes, spans, *path, seconds});
  }
  engine.set_path_table(table);
}

std::pair<double, double> ceiling(Engine& engine) {
  std::pair<double, double> rates;
  without_gil([&] {
    for (const Direction direction : {Direction::store, Direction::load}) {
      auto rate = engine.contiguous_bytes_per_s(direction);
      if (!rate.ok()) return rate.status();
      (direction == Direction::store ? rates.first : rates.second) = *rate / 1e9;
    }
    return Status();
  });
  return rates;
}

std::vector<std::string> paths_of(const Engine& engine) {
  std::vector<std::string> names;
  for (const Path path : kPaths)
    if (engine.has_path(path)) names.emplace_back(name_of(path, engine.is_cuda()));
  return names;
}

void bind_paths(py::class_<Engine, std::shared_ptr<Engine>>& engine) {
  engine.def_property_readonly("ring_bytes", &Engine::ring_bytes)
      .def_property_readonly("paths", &paths_of)
      .def("calibrate", &calibrate)
      .def("set_path_table", &set_path_table, py::arg("rows"))
      .def("ceiling", &ceiling);
}

void bind_handle(py::module_& m) {
  py::class_<Mark>(m, "Mark", "A point in a caller's stream, for `after=`.");
  py::class_<TransferHandle>(m, "TransferHandle")
      .def("before",
           [](TransferHandle& handle, StreamHandle stream, double timeout_seconds) {
             check_owner(handle);
             without_gil([&] { return handle.lane->before(*handle.transfer, stream, deadline_in(timeout_seconds)); });
           })
      .def("check", &check_owner)
      .def("done",
           [](TransferHandle& handle) {
             check_owner(handle);
             return handle.lane->done(*handle.transfer);
           })
      .def("wait",
           [](TransferHandle& handle, double timeout_seconds) {
             check_owner(handle);
             wait_interruptibly(handle, timeout_seconds);
           })
      .def("cancel",
           [](TransferHandle& handle) {
             check_owner(handle);
             return handle.lane->cancel(*handle.transfer);
           })
      .def("result", &result_of);
}

}  // namespace

void bind_transfer(py::module_& m) {
  bind_handle(m);
  py::class_<Engine, std::shared_ptr<Engine>> engine(m, "Engine");
  bind_paths(engine);
  engine
      .def(py::init([](std::shared_ptr<Device> device, std::shared_ptr<Arena> arena, std::vector<GroupGeometry> groups,
                       std::int64_t queue_depth, std::int64_t ring_bytes, const py::dict& tuning) {
             return make_engine(std::move(device), std::move(arena), std::move(groups),
                                options_of(queue_depth, ring_bytes, tuning));
           }),
           py::arg("device"), py::arg("arena"), py::arg("groups"), py::arg("queue_depth"), py::arg("ring_bytes") = 0,
           py::arg("tuning") = py::dict())
      .def("mark", [](Engine& engine,
                      StreamHandle stream) { return Mark{value_or_throw(engine.mark(stream)), engine.is_cuda()}; })
      .def("submit", &submit, py::arg("store"), py::arg("group"), py::arg("blocks"), py::arg("slots"),
           py::arg("skip_blocks"), py::arg("stream"), py::arg("after").none(true), py::arg("job"), py::arg("path") = "")
      .def(
          "check", [](const Engine& engine) { throw_if_error(engine.usable()); },
          "Raises Closed or Forked, before a framework is asked for a stream.")
      .def("check_owner", [](const Engine& engine) { throw_if_error(engine.owner().check("this mover")); })
      .def("poll", &poll)
      .def("stats",
           [](Engine& engine) {
             py::dict out;
             out["store"] = stats_of(engine, Direction::store);
             out["load"] = stats_of(engine, Direction::load);
             return out;
           })
      .def("slot_address",
           [](const Engine& engine, int group, std::int64_t slot) {
             return reinterpret_cast<std::uintptr_t>(value_or_throw(engine.slot_address(group, slot)));
           })
      .def_property_readonly("ready_bytes", &Engine::ready_bytes)
      .def("close", [](Engine& engine, double timeout_seconds) {
        without_gil([&] { return engine.close(deadline_in(timeout_seconds)); });
      });
}

}  // namespace kvo
