// Where a sharded model meets autograd: three kinds of hook, none of which knows what is done in
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace lins {

// Returns the same tensors, those that require gradients behind a node whose backward calls fn once
// all their gradients are there.
std::vector<at::Tensor> OnInputGradients(const std::vector<at::Tensor>& inputs,
                                         std::function<void()> fn);

// Calls fn when the first gradient reaches any of the tensors (each time a backward comes by).
void OnOutputGradient(const std::vector<at::Tensor>& outputs, const std::function<void()>& fn);

// Calls fn(grad) after each accumulation into the leaf; fn may take the gradient away by resetting
// it. Lives until the returned handle goes.
std::shared_ptr<void> OnAccumulatedGradient(const at::Tensor& leaf,
                                            std::function<void(at::Tensor& grad)> fn);

// Calls fn at the end of the backward that is running in this thread.
void OnBackwardEnd(std::function<void()> fn);
bool InsideBackward();

}  // namespace lins
