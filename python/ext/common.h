// What both extension modules share: how absl::string_view and lins::Error cross into Python.
#pragma once

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "mesh/error.h"

namespace lins {

namespace py = pybind11;

// Turns lins::Error into lins.errors.LinsValueError or LinsRuntimeError. Call once per module.
inline void RegisterErrors() {
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& e) {
      const char* name = e.kind() == Error::Kind::kValue ? "LinsValueError" : "LinsRuntimeError";
      const py::object type = py::module_::import("lins.errors").attr(name);
      // What a message quotes of a damaged file need not be UTF-8.
      const std::string text = e.what();
      const auto message = py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"));
      py::set_error(type, message);
    }
  });
}

template <typename Container>
py::tuple ToTuple(const Container& values) {
  py::tuple out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  return out;
}

inline std::string Str(absl::string_view text) { return std::string(text); }

}  // namespace lins
