// The types that a Config names: where keys and values lie, and what is done to their scores.
#pragma once

#include "attention/cache.hpp"
#include "attention/documents.hpp"
#include "attention/dropout.hpp"
#include "attention/mask.hpp"
#include "attention/softmax.hpp"
#include "attention/variant.hpp"
