// How an Error thrown in a backward reaches the caller of backward.
#pragma once

#include "mesh/error.h"

namespace lins {

// Autograd carries what a node throws to the caller of backward. Where that caller is Python, an
// Error must become what autograd's Python side understands: `translate` throws that in its place.
// One for the process.
void SetErrorTranslator(void (*translate)(const Error&));
// Throws the translation of `error`; returns where no translator is set.
void TranslateError(const Error& error);

// Calls fn, an autograd node's work.
template <typename Fn>
auto GuardBackward(const Fn& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    TranslateError(error);
    throw;
  }
}

}  // namespace lins
