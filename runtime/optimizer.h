// All optimizers.
#pragma once

#include "runtime/adafactor.h"
#include "runtime/adam.h"
#include "runtime/external_optimizer.h"
#include "runtime/muon.h"
#include "runtime/sgd.h"
