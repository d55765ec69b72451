// Sub-axes by counting over all ranks: slow and plain, what the tests compare with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace lins::testing {

inline Mesh MakeMesh(std::vector<int64_t> shape) {
  std::vector<std::string> names;
  for (size_t i = 0; i < shape.size(); ++i) names.push_back(std::string(1, "xyz"[i]));
  return *Mesh::Create(std::move(shape), std::move(names));
}

// Meshes that every test of this folder sweeps.
inline std::vector<Mesh> SmallMeshes() {
  std::vector<Mesh> out;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1},
                                                                             {4},
                                                                             {6},
                                                                             {8},
                                                                             {12},
                                                                             {1, 4},
                                                                             {4, 1},
                                                                             {2, 3},
                                                                             {2, 4},
                                                                             {3, 3},
                                                                             {2, 2, 2},
                                                                             {1, 2, 1}}) {
    out.push_back(MakeMesh(shape));
  }
  return out;
}

// Every sub-axis that divides its axis, of size 1 only where the axis is.
inline Axes AllSubAxes(const Mesh& mesh) {
  Axes out;
  for (int i = 0; i < mesh.ndim(); ++i) {
    const int64_t whole = mesh.shape()[i];
    for (int64_t size = whole == 1 ? 1 : 2; size <= whole; ++size) {
      for (int64_t stride = 1; size * stride <= whole; ++stride) {
        if (whole % (size * stride) == 0) out.push_back({i, size, stride});
      }
    }
  }
  return out;
}

// Every ordered list of at most `longest` sub-axes that the mesh accepts.
inline std::vector<Axes> AllLists(const Mesh& mesh, size_t longest) {
  const Axes all = AllSubAxes(mesh);
  std::vector<Axes> out = {Axes()};
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].size() == longest) continue;
    for (const SubAxis& a : all) {
      Axes longer = out[i];
      longer.push_back(a);
      if (mesh.Validate(longer).ok()) out.push_back(longer);
    }
  }
  return out;
}

// A rank's coordinates along the sub-axes, by the definition: (c / stride) mod size.
inline std::vector<int64_t> SubCoordinates(const Mesh& mesh, const Axes& axes, int64_t rank) {
  std::vector<int64_t> c(mesh.ndim());
  for (int i = mesh.ndim() - 1; i >= 0; --i) {
    c[i] = rank % mesh.shape()[i];
    rank /= mesh.shape()[i];
  }
  std::vector<int64_t> out;
  for (const SubAxis& a : axes) out.push_back(c[a.axis] / a.stride % a.size);
  return out;
}

}  // namespace lins::testing
