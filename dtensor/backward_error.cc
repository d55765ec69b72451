#include "dtensor/backward_error.h"

#include <atomic>

namespace lins {
namespace {

std::atomic<void (*)(const Error&)> translator = nullptr;

}  // namespace

void SetErrorTranslator(void (*translate)(const Error&)) { translator = translate; }

void TranslateError(const Error& error) {
  if (auto translate = translator.load()) translate(error);
}

}  // namespace lins
