#include "launcher.h"

#include <cstring>
#include <utility>

#include "python_names.h"

namespace py = pybind11;

namespace ks {

namespace {

constexpr size_t kMaxPrepared = 4096;  // kernels are made at run time, too

// Launch extents as Warp counts them. False: let Warp look at it (and raise, if need be).
bool read_dim(PyObject* dim, uint64_t* extents, int& count) {
  PyObject* const* items = &dim;
  count = 1;
  if (PyTuple_CheckExact(dim) || PyList_CheckExact(dim)) {
    count = static_cast<int>(PySequence_Fast_GET_SIZE(dim));
    items = PySequence_Fast_ITEMS(dim);
  }
  if (count < 1 || count > 4) return false;
  for (int i = 0; i < count; ++i) {
    const Py_ssize_t extent = PyNumber_AsSsize_t(items[i], PyExc_OverflowError);
    if (extent < 0 || extent > INT32_MAX) {
      PyErr_Clear();
      return false;
    }
    extents[i] = static_cast<uint64_t>(extent);
  }
  return true;
}

// launch_bounds_t<ndim>: uint32 shape[ndim], then two size_t.
size_t write_bounds(const uint64_t* extents, int count, int ndim, uint64_t size, char* out) {
  auto* shape = reinterpret_cast<uint32_t*>(out);
  for (int i = 0; i < ndim; ++i) shape[i] = i < count ? static_cast<uint32_t>(extents[i]) : 1;
  uint64_t shared = 1;
  for (int i = ndim; i < count; ++i) shared *= extents[i];
  const size_t tail = (4u * ndim + 7) / 8 * 8;
  std::memcpy(out + tail, &size, 8);
  std::memcpy(out + tail + 8, &shared, 8);
  return tail + 16;
}

}  // namespace

Launcher::Launcher(const py::dict& facts)
    : config_(facts["config"]),
      runtime_(facts["runtime"]),
      cpu_(facts["cpu"]),
      array_type_(facts["array"]),
      kernel_type_(facts["kernel"]) {}

void Launcher::prepare(const py::object& kernel, const py::dict& entry) {
  Prepared prepared;
  prepared.kernel = kernel;
  prepared.hasher = entry["hasher"];
  prepared.keep = entry["keep"];
  prepared.function = entry["function"].cast<uint64_t>();
  prepared.lanes = entry["lanes"].cast<std::shared_ptr<LaneCode>>();
  prepared.kernel_dim = entry["kernel_dim"].cast<int>();
  prepared.max_threads = entry["max_threads"].cast<uint64_t>();
  prepared.args_bytes = entry["args_bytes"].cast<uint32_t>();
  prepared.label = entry["label"].cast<uint64_t>();
  for (py::handle item : entry["args"]) {
    const auto fields = item.cast<py::tuple>();
    prepared.args.push_back({static_cast<ArgKind>(fields[0].cast<int>()),
                             fields[1].cast<uint32_t>(), fields[2].cast<uint32_t>(),
                             fields[3].cast<uint32_t>(), fields[4].cast<int>(), fields[5]});
  }
  if (prepared_.size() >= kMaxPrepared) prepared_.clear();
  prepared_.insert_or_assign(kernel.ptr(), std::make_shared<const Prepared>(std::move(prepared)));
}

// Whatever makes Warp do more than to pack and call.
bool Launcher::is_ordinary(PyObject* device) const {
  const Names& n = names();
  if (device == nullptr || device == Py_None) {
    if (!attribute_is(runtime_.ptr(), n.default_device, cpu_.ptr())) return false;
  } else if (device != cpu_.ptr() &&
             !(PyUnicode_CheckExact(device) &&
               PyUnicode_CompareWithASCIIString(device, "cpu") == 0)) {
    return false;
  }
  if (!attribute_is(runtime_.ptr(), n.tape, Py_None)) return false;
  if (!attribute_is(runtime_.ptr(), n.capture, Py_None)) return false;
  if (!attribute_is(config_.ptr(), n.enable_cpu_blocks, Py_False)) return false;
  if (!attribute_is(config_.ptr(), n.print_launches, Py_False)) return false;
  if (!attribute_is(config_.ptr(), n.verify, Py_False)) return false;
  PyObject* mode = PyObject_GetAttr(config_.ptr(), n.access_mode);  // RELAXED is 0
  if (mode == nullptr) {
    PyErr_Clear();
    return false;
  }
  const long value = PyLong_AsLong(mode);
  Py_DECREF(mode);
  return value == 0;
}

// A changed or unloaded module has another hasher, or none.
bool Launcher::is_current(const Prepared& prepared) const {
  const Names& n = names();
  PyObject* module = PyObject_GetAttr(prepared.kernel.ptr(), n.module);
  if (module == nullptr) {
    PyErr_Clear();
    return false;
  }
  PyObject* hashers = PyObject_GetAttr(module, n.hashers);
  Py_DECREF(module);
  if (hashers == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool is_same = PyDict_Check(hashers) &&
                       PyDict_GetItemWithError(hashers, n.one) == prepared.hasher.ptr();
  Py_DECREF(hashers);
  return is_same;
}

namespace {

struct Scratch {
  std::vector<PyObject*> values;
  std::vector<char> blob;
  std::vector<Access> accesses;
  std::vector<void*> keep;

  void clear() {
    values.clear();
    accesses.clear();
    keep.clear();
  }
};
thread_local Scratch t_scratch;

// Takes a thread's buffers; whoever comes in between gets empty ones.
template <class T>
class Borrowed {
 public:
  explicit Borrowed(T& owner) : owner_(owner), taken_(std::move(owner)) {}
  ~Borrowed() { owner_ = std::move(taken_); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  T* operator->() { return &taken_; }

 private:
  T& owner_;
  T taken_;
};

}  // namespace

PyObject* Launcher::launch(PyStreams& streams, PyObject* const* args, size_t count,
                           PyObject* keywords) {
  const Names& n = names();
  PyObject* given[4] = {nullptr, nullptr, nullptr, nullptr};  // kernel, dim, inputs, outputs
  PyObject* device = nullptr;
  if (count > 4) return nullptr;
  for (size_t i = 0; i < count; ++i) given[i] = args[i];
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(keywords, i);
    PyObject* value = args[count + i];
    if (name == n.kernel) {
      given[0] = value;
    } else if (name == n.dim) {
      given[1] = value;
    } else if (name == n.inputs) {
      given[2] = value;
    } else if (name == n.outputs) {
      given[3] = value;
    } else if (name == n.device) {
      device = value;
    } else if (name != n.block_dim && name != n.max_blocks && name != n.record_tape) {
      return nullptr;
    }
  }
  if (given[0] == nullptr || given[1] == nullptr) return nullptr;
  if (reinterpret_cast<PyObject*>(Py_TYPE(given[0])) != kernel_type_.ptr()) return nullptr;
  if (!is_ordinary(device)) return nullptr;

  uint64_t extents[4];
  int dims = 0;
  if (!read_dim(given[1], extents, dims)) return nullptr;
  uint64_t size = 1;
  for (int i = 0; i < dims; ++i) size *= extents[i];
  if (size == 0) {  // Warp looks at nothing else either
    if (!attribute_is(given[0], n.uses_warp_abi, Py_True)) return nullptr;
    ++empty_launches_;
    Py_RETURN_NONE;
  }
  const auto found = prepared_.find(given[0]);
  if (found == prepared_.end()) return nullptr;
  const std::shared_ptr<const Prepared> held = found->second;  // another thread may replace it
  const Prepared& prepared = *held;
  if (size > prepared.max_threads || !is_current(prepared)) return nullptr;
  if (streams.streams.has_failed()) return nullptr;  // Warp's way ends in raising the error

  // Looking at the arguments may run Python, and with it launches of other threads or a destructor
  // that submits a task: everything is taken down here before a slot is opened.
  Borrowed<Scratch> scratch(t_scratch);
  scratch->clear();
  for (int side = 2; side < 4; ++side) {
    PyObject* list = given[side];
    if (list == nullptr) continue;
    if (!PyList_CheckExact(list) && !PyTuple_CheckExact(list)) return nullptr;
    PyObject* const* items = PySequence_Fast_ITEMS(list);
    scratch->values.insert(scratch->values.end(), items, items + PySequence_Fast_GET_SIZE(list));
  }
  if (scratch->values.size() != prepared.args.size()) return nullptr;
  for (PyObject* value : scratch->values) Py_INCREF(value);
  const size_t args_at = 32;
  scratch->blob.assign(args_at + prepared.args_bytes, 0);
  char* const blob = scratch->blob.data();
  write_bounds(extents, dims, prepared.kernel_dim, size, blob);
  scratch->keep.push_back(py::object(prepared.keep).release().ptr());
  const bool is_packed =
      pack(prepared, scratch->values.data(), blob + args_at, scratch->accesses, scratch->keep);
  for (PyObject* value : scratch->values) Py_DECREF(value);
  if (!is_packed || streams.is_visible(scratch->accesses)) {
    for (void* object : scratch->keep) Py_DECREF(static_cast<PyObject*>(object));
    return nullptr;
  }
  if (prepared.lanes) scratch->keep.push_back(py::cast(prepared.lanes).release().ptr());

  Streams::Slot& slot = streams.open_slot();
  slot.call.reserve_blob(scratch->blob.size());
  std::memcpy(slot.call.blob_data(), blob, scratch->blob.size());
  slot.accesses.assign(scratch->accesses.begin(), scratch->accesses.end());
  slot.keep.assign(scratch->keep.begin(), scratch->keep.end());
  slot.call.function = reinterpret_cast<void*>(prepared.function);
  slot.call.per_lane = prepared.lanes ? &prepared.lanes->functions : nullptr;
  slot.call.args[0] = 0;
  slot.call.args[1] = static_cast<int64_t>(args_at);
  slot.call.blob_args = 3;
  slot.label = prepared.label;
  ++prepared_launches_;
  streams.after_commit(streams.streams.commit(slot));
  Py_RETURN_NONE;
}

}  // namespace ks
