#pragma once

// All of lockstep's public API. docs/tour.md shows it at work.

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/version.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/verify.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/requests.h>
#include <lockstep/comm/store.h>
#include <lockstep/comm/work.h>
#include <lockstep/data/batches.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/text_data.h>
#include <lockstep/data/token_data.h>
#include <lockstep/data/tokenizer.h>
#include <lockstep/ddp/comm_hook.h>
#include <lockstep/ddp/compress_hooks.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/local_sgd.h>
#include <lockstep/ddp/outputs.h>
#include <lockstep/ddp/power_sgd.h>
#include <lockstep/ddp/reducer.h>
#include <lockstep/ddp/sync_batch_norm.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>
#include <lockstep/weights/save.h>
#include <lockstep/weights/weights.h>
