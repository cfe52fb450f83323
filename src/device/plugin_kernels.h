#pragma once

/* The kernels of a training step, as the plug-in offers them and as their twins on the CPU
 * (device/twins/) define them. One struct of arguments for each: the twin takes it with pointers
 * to the host's memory, the plug-in with pointers to the device's. C types only.
 *
 * Matrices are dense, row after row, unless a stride is named. Activations are float32 or bfloat16,
 * and so are their gradients; statistics, parameters and their gradients are float32. All sums are
 * in float32 or wider and in an order that depends on the sizes and the model of GPU alone, so the
 * bits are the same every time. Any size works, 0 rows too; rows of whole 16 bytes that begin at a
 * multiple of 16 bytes are fast. Every function returns null or says what failed. `stream` is a
 * cudaStream_t; nothing waits for the device. */

#include <stddef.h>
#include <stdint.h>

extern "C" {

enum { LOCKSTEP_FLOAT32 = 0, LOCKSTEP_BFLOAT16 = 1, LOCKSTEP_FLOAT16 = 2 };

/* Element i is dropped if its 16 random bits are below round(probability * 65536), and divided by
 * the fraction that is kept otherwise. The bits are number i % 8 of the eight halves, from the
 * lowest, of Philox4x32-10 with the key `seed` and the counter (i / 8, site, offset); i counts
 * the elements of the tensor, of which there are fewer than 2^35. */
typedef struct LockstepDropout {
  float probability;     /* 0: none; in [0, 1) */
  uint32_t site;         /* tells the places of a model apart */
  const uint64_t* state; /* seed and offset; on the device, so that a replayed graph can go on */
} LockstepDropout;

/* sum = x + dropout(branch), rounded to its type; out = (sum - mean) * rstd * weight + bias. */
typedef struct LockstepNormForward {
  int64_t rows;
  int64_t columns;
  int32_t type;
  float epsilon;
  const void* x;
  const void* branch;  /* or null: then sum is x, and not written */
  const float* weight; /* [columns] */
  const float* bias;
  void* sum; /* may be x or branch */
  void* out;
  float* mean; /* [rows]; the backward pass needs sum, mean and rstd */
  float* rstd;
  LockstepDropout dropout;
} LockstepNormForward;

/* grad_x = grad_sum + the gradient through the norm, grad_branch = that through the dropout. */
typedef struct LockstepNormBackward {
  int64_t rows;
  int64_t columns;
  int32_t type;
  int32_t accumulate; /* 1: the gradients of parameters are added to what is there */
  const void* grad_out;
  const void* grad_sum; /* what reaches sum by other ways; or null */
  const void* sum;
  const float* mean;
  const float* rstd;
  const float* weight;
  void* grad_x;       /* may be grad_out or grad_sum */
  void* grad_branch;  /* null: not wanted; without dropout it would be grad_x */
  float* grad_weight; /* [columns] */
  float* grad_bias;
  float* grad_branch_bias; /* the column sums of the branch's gradient; or null */
  LockstepDropout dropout;
  void* scratch; /* norm_scratch_bytes(rows, columns) */
} LockstepNormBackward;

enum { LOCKSTEP_GELU_ERF = 0, LOCKSTEP_GELU_TANH = 1 };

/* out = gelu(x); may be x. */
typedef struct LockstepGeluForward {
  int64_t rows;
  int64_t columns;
  int32_t type;
  int32_t form;
  const void* x;
  void* out;
} LockstepGeluForward;

/* grad_x = grad_out * gelu'(x), grad_bias = its column sums (before they are rounded). */
typedef struct LockstepGeluBackward {
  int64_t rows;
  int64_t columns;
  int32_t type;
  int32_t form;
  int32_t accumulate; /* 1: grad_bias is added to what is there */
  const void* x;
  const void* grad_out;
  void* grad_x;     /* may be x or grad_out */
  float* grad_bias; /* [columns], or null */
  void* scratch;    /* column_scratch_bytes(rows, columns) */
} LockstepGeluBackward;

/* Losses of logits[row][0 .. classes) against labels[row]. A label of `ignored` makes the loss and
 * the gradient of its row 0 and is not counted; any other outside [0, classes) makes the loss NaN.
 * result[0] = the mean over the labels that count (NaN if none does), result[1] = their number.
 * With `gradient`, logits become their gradient: (softmax - onehot) * scale / number; columns from
 * `classes` to `stride` become 0. No probabilities are kept. */
typedef struct LockstepCrossEntropy {
  int64_t rows;
  int64_t classes;
  int64_t stride; /* elements from one row to the next, >= classes */
  int32_t type;
  int32_t gradient;
  int64_t ignored;
  void* logits;
  const int64_t* labels;
  const float* scale; /* what the mean's gradient is multiplied by, such as a loss scale; null: 1 */
  float* losses;      /* [rows] */
  float* result;      /* [2] */
} LockstepCrossEntropy;

/* data *= *factor. A factor of 1 costs no traffic: nothing is read or written. */
typedef struct LockstepScale {
  int64_t count;
  int32_t type;
  void* data;
  const float* factor; /* on the device: what autograd hands a loss is known there */
} LockstepScale;

/* out[i] = dropout(tokens[ids[i]] + positions[i % period] + segments[segment_ids[i]]). */
typedef struct LockstepEmbeddingForward {
  int64_t rows;
  int64_t columns;
  int64_t vocabulary;
  int64_t period;     /* rows of `positions` that are used: the length of a sequence */
  int32_t type;       /* of out */
  int32_t table_type; /* of the tables: float32 masters, or bfloat16 copies */
  const int64_t* ids; /* [rows]; outside [0, vocabulary): the row of out is NaN */
  const void* tokens;
  const void* positions;      /* or null */
  const int64_t* segment_ids; /* or null, with segments */
  const void* segments;
  void* out;
  LockstepDropout dropout;
} LockstepEmbeddingForward;

/* order = the rows sorted by id, those of one id in their order. */
typedef struct LockstepEmbeddingSort {
  int64_t rows;
  int64_t vocabulary; /* < 2^31, as rows */
  const int64_t* ids;
  int32_t* order;      /* [rows] */
  int32_t* sorted_ids; /* [rows]; an id outside [0, vocabulary) comes last, as vocabulary */
  void* scratch;       /* embedding_sort_scratch_bytes(rows) */
} LockstepEmbeddingSort;

/* grad_table[id] += the sum of dropout's gradient of grad_out over the rows of the id. Rows of the
 * table that no id names are left as they are. */
typedef struct LockstepEmbeddingBackward {
  int64_t rows;
  int64_t columns;
  int64_t vocabulary;
  int32_t type;
  const void* grad_out;
  const int32_t* order; /* of LockstepEmbeddingSort */
  const int32_t* sorted_ids;
  float* grad_table;
  LockstepDropout dropout;
  void* scratch; /* embedding_scratch_bytes(rows, columns) */
} LockstepEmbeddingBackward;

/* grad_positions[p] = the sum of grad_out[i] over all i with i % period == p. */
typedef struct LockstepPositionBackward {
  int64_t rows;
  int64_t columns;
  int64_t period;
  int32_t type;
  int32_t accumulate;
  const void* grad_out;
  float* grad_positions; /* [period, columns] */
  LockstepDropout dropout;
} LockstepPositionBackward;

/* What an optimizer's step reads and writes on the device. */
typedef struct LockstepStepState {
  /* Set by the caller, by a copy on the stream or once. */
  float learning_rate;
  float grad_scale; /* gradients are multiplied by it first: 1 / loss scale; 1 if there is none */
  float max_norm;   /* of all gradients together, after grad_scale; 0: no limit */
  float skip;       /* not 0: this step changes nothing */
  /* Written by step_begin. */
  float norm;        /* of all gradients, after grad_scale */
  float factor;      /* grad_scale * what clipping leaves */
  float skipped;     /* 1: by `skip`, or since the norm is not finite */
  float correction1; /* 1 - beta1^step */
  float correction2; /* sqrt(1 - beta2^step) */
  float reserved;
  int64_t step; /* steps done; one more after step_begin unless skipped */
} LockstepStepState;

/* One parameter. Device pointers; those of 16 bytes' alignment are fast (copy: 8). */
typedef struct LockstepParameter {
  float* master;
  float* moment1; /* AdamW's m, or SGD's momentum; null for SGD without momentum */
  float* moment2; /* AdamW's v */
  const void* grad;
  void* copy; /* bfloat16, written in the same pass; or null */
  int64_t count;
  int32_t grad_type; /* LOCKSTEP_FLOAT32 or LOCKSTEP_BFLOAT16 */
  float weight_decay;
  float rate_factor; /* learning_rate is multiplied by it */
  int32_t reserved;
} LockstepParameter;

/* LOCKSTEP_CHUNK elements of a parameter, from index * LOCKSTEP_CHUNK on. */
enum { LOCKSTEP_CHUNK = 4096 };
typedef struct LockstepChunk {
  int32_t parameter;
  int32_t index;
} LockstepChunk;

/* Both lists are where the kernel runs: made once, by optimizer_chunks() of device/kernels.h. */
typedef struct LockstepParameterList {
  const LockstepParameter* parameters;
  const LockstepChunk* chunks;
  int64_t num_chunks;
} LockstepParameterList;

/* state->norm = grad_scale * sqrt(sum_of_squares[0]), and what follows from it; see above. */
typedef struct LockstepStepBegin {
  const double* sum_of_squares; /* of all gradients; null: no norm is known, no clipping */
  float beta1;                  /* 0 for SGD */
  float beta2;
  LockstepStepState* state;
} LockstepStepBegin;

/* torch::optim::AdamW; and the bfloat16 copy. */
typedef struct LockstepAdamW {
  LockstepParameterList list;
  float beta1;
  float beta2;
  float epsilon;
  const LockstepStepState* state;
} LockstepAdamW;

/* torch::optim::SGD: weight decay is added to the gradient. The first step of a momentum counts its
 * buffer as 0 and does not dampen. */
typedef struct LockstepSgd {
  LockstepParameterList list;
  float momentum;
  float dampening;
  int32_t nesterov;
  const LockstepStepState* state;
} LockstepSgd;

/* Channels last: x is [rows, channels], with rows = batch * height * width. out =
 * relu((x - mean) * rstd * weight + bias + residual), statistics over the batch. */
typedef struct LockstepBatchNormForward {
  int64_t rows; /* > 0 */
  int64_t channels;
  int32_t type;
  int32_t relu;
  float epsilon;
  float momentum; /* running = (1 - momentum) * running + momentum * this batch's */
  const void* x;
  const void* residual; /* or null */
  const float* weight;  /* [channels] */
  const float* bias;
  void* out;
  float* mean; /* [channels]; the backward pass needs x, out, mean and rstd */
  float* rstd;
  float* running_mean; /* or null */
  float* running_var;  /* unbiased */
  void* scratch;       /* column_scratch_bytes(rows, channels) */
} LockstepBatchNormForward;

typedef struct LockstepBatchNormBackward {
  int64_t rows;
  int64_t channels;
  int32_t type;
  int32_t relu;
  int32_t accumulate;
  const void* grad_out;
  const void* x;
  const void* out; /* where it is 0, relu lets nothing through; null without relu */
  const float* mean;
  const float* rstd;
  const float* weight;
  void* grad_x;
  void* grad_residual; /* or null; may be grad_out */
  float* grad_weight;  /* [channels] */
  float* grad_bias;
  void* scratch; /* column_scratch_bytes(rows, channels) */
} LockstepBatchNormBackward;

typedef struct LockstepKernels {
  const char* (*norm_forward)(const LockstepNormForward* arguments, void* stream);
  const char* (*norm_backward)(const LockstepNormBackward* arguments, void* stream);
  const char* (*gelu_forward)(const LockstepGeluForward* arguments, void* stream);
  const char* (*gelu_backward)(const LockstepGeluBackward* arguments, void* stream);
  const char* (*cross_entropy)(const LockstepCrossEntropy* arguments, void* stream);
  const char* (*scale)(const LockstepScale* arguments, void* stream);
  const char* (*embedding_forward)(const LockstepEmbeddingForward* arguments, void* stream);
  const char* (*embedding_sort)(const LockstepEmbeddingSort* arguments, void* stream);
  const char* (*embedding_backward)(const LockstepEmbeddingBackward* arguments, void* stream);
  const char* (*position_backward)(const LockstepPositionBackward* arguments, void* stream);
  const char* (*step_begin)(const LockstepStepBegin* arguments, void* stream);
  const char* (*adamw)(const LockstepAdamW* arguments, void* stream);
  const char* (*sgd)(const LockstepSgd* arguments, void* stream);
  const char* (*batch_norm_forward)(const LockstepBatchNormForward* arguments, void* stream);
  const char* (*batch_norm_backward)(const LockstepBatchNormBackward* arguments, void* stream);
  size_t (*norm_scratch_bytes)(int64_t rows, int64_t columns);
  size_t (*column_scratch_bytes)(int64_t rows, int64_t columns);
  size_t (*embedding_sort_scratch_bytes)(int64_t rows);
  size_t (*embedding_scratch_bytes)(int64_t rows, int64_t columns);
} LockstepKernels;
}
