// The types that a Config names: layouts of keys and values, masks, dropout, changes to scores and
// kinds of softmax.
#pragma once

#include "attention/cache.hpp"
#include "attention/chunks.hpp"
#include "attention/documents.hpp"
#include "attention/dropout.hpp"
#include "attention/mask.hpp"
#include "attention/picks.hpp"
#include "attention/softmax.hpp"
#include "attention/variant.hpp"
