/* Attention kernels of your own in attnbench: the C interface of plugins.
 *
 * A plugin is a shared library that exports one function, attnbench_backend(), and is given to
 * `attnbench run --plugin libmine.so`. docs/plugins.md goes from nothing to a judged kernel.
 *
 * Rules for all of it:
 * - C11 and C++11; no exception may leave a function (one that does ends the case as an error).
 * - Floating-point settings (flush-to-zero, rounding) that loading or a call leaves behind hold for
 *   the plugin's next call of the thread, and for nobody else.
 * - What a plugin prints to stdout goes to stderr, where cases run in a process of their own.
 * - Functions return NULL for success, or a text that says what is wrong. The text stays the
 *   plugin's and must live until the next call of the same thread.
 * - Every struct but AttnbenchTensor begins with its size and only ever grows at its end. Zero is
 *   what a field meant before it existed, so fill a struct with zeros first. A field past
 *   struct_size is not there.
 * - What a flag is needed for (ATTNBENCH_SLIDING_WINDOW, ...) is never handed to a plugin that has
 *   not set it, so features of later versions end as "unsupported" and not as wrong results.
 */
#ifndef ATTNBENCH_BACKEND_H_
#define ATTNBENCH_BACKEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of what a plugin is compiled with. A program of version 2 serves plugins of version 1 as well; 2
 * brought ATTNBENCH_MLA_PREFILL, operations beyond the first two, with AttnbenchTensors::operands,
 * caches with a scale for each token and head, int8 attention and that of the ranks of a
 * decode-context group. */
#define ATTNBENCH_ABI_VERSION 2u

/* Devices. */
#define ATTNBENCH_CPU 1u
#define ATTNBENCH_CUDA 2u

/* attention.type. decoder, encoder_decoder and mla have a paged cache, others keys as tensors. */
#define ATTNBENCH_DECODER 1u
#define ATTNBENCH_ENCODER 2u
#define ATTNBENCH_ENCODER_ONLY 4u
#define ATTNBENCH_ENCODER_DECODER 8u
#define ATTNBENCH_MM_ENCODER 16u /* each request one image or video sequence */
/* Attention over the latents of MLA: every head reads the entries of kv_cache, of head_size =
 * kv_lora_rank + qk_rope_head_dim elements as keys and of their first v_head_size = kv_lora_rank as
 * values. The query comes absorbed (W_UK is in it), the output goes through W_UV afterwards, both
 * as steps of attnbench. Every request comes so, prefills too. Of the features only those below
 * that name MLA, ATTNBENCH_CAUSAL and those of element types are asked for. num_heads counts heads
 * of padding, too (mla.q_pad_num_heads): they are last, their queries 0, and nobody reads their
 * results. */
#define ATTNBENCH_MLA 32u
#define ATTNBENCH_OP 64u /* one operation alone: AttnbenchBackend::operations */
/* The prefills of MLA over expanded heads (multi-head attention), inside the steps of attnbench:
 * those write the latents, expand keys and values of head_size = qk_nope_head_dim +
 * qk_rope_head_dim and v_head_size = v_head_dim, merge partial results and run the decodes of the
 * batch. prepare() is called for the new tokens (causal, each request's keys are its own new
 * tokens) and for each chunk of the context (not causal, a request's keys are its part of the
 * chunk, which may be none), each with its problem, tensors and state; run() of each is called at
 * its place in the step. query [T, N, D], key and value [S, N, ...] by their strides, T the tokens
 * of the prefills; keys are ragged whatever AttnbenchBackend::kv says. query_lens, seq_lens,
 * query_start_loc and key_start_loc are those of the call. lse has to be ATTNBENCH_LSE_NATURAL.
 * Not beside ATTNBENCH_MLA in one AttnbenchBackend. */
#define ATTNBENCH_MLA_PREFILL 128u

/* op.name, with AttnbenchTensors that it works on. */
/* Rows of key and value into key_cache and value_cache at slot_mapping; negative slots are skipped,
 * every other byte of the cache stays. With an fp8 cache: code = key / k_scale (a division), of
 * what is too large the largest one; value / v_scale. The caches are of AttnbenchBackend::kv, which
 * has to be one with pages. In prepare() they are bytes 0xFF, and the slots are in place; what they
 * hold before a run is put there afterwards, and again before each run that is judged. */
#define ATTNBENCH_OP_RESHAPE_AND_CACHE 1u
/* Partial results of the same queries over two sets of keys, prefix and suffix, as one: with
 * m = max(lse_p, lse_s) and weights w = e^(lse - m), output = (w_p o_p + w_s o_s) / (w_p + w_s) and
 * lse = m + ln(w_p + w_s); where neither sees a key, 0 and an empty row's LSE. Rows from
 * num_merged_tokens on are the suffix.
 * LSEs that come in are like those that the plugin says it writes: in the base of
 * AttnbenchBackend::lse (natural for one that writes none), in the order of lse_axes, and for a
 * part that sees no key the infinity of empty_rows and no other: a plugin of
 * ATTNBENCH_EMPTY_MINUS_INF never meets +inf, which kernels in engines take for the same. The
 * output of such a part is 0. */
#define ATTNBENCH_OP_MERGE 2u

/* All others have their operands by name: AttnbenchTensors::operands, under the names that saved
 * tensors have (docs/plugins.md lists those of each). Outputs hold poison, or what a cache held
 * before, and have to be written whole unless their name says otherwise. */
#define ATTNBENCH_OP_GATHER 4u             /* gather of latents: op.raw, dequantised, upconverted */
#define ATTNBENCH_OP_ROPE 8u               /* rotary position embedding */
#define ATTNBENCH_OP_ROPE_AND_CACHE 16u    /* the same, and a cache write */
#define ATTNBENCH_OP_QUANTIZE 32u          /* queries, or int8 queries, keys and values */
#define ATTNBENCH_OP_DCP_CORRECT 64u       /* partial results of ranks */
#define ATTNBENCH_OP_OUTPUT_QUANT 128u     /* an output for the next layer */
#define ATTNBENCH_OP_MM_QUANT 256u         /* query, key and value of a vision encoder in e4m3 */
#define ATTNBENCH_OP_METADATA 512u         /* the slices of a batch */
#define ATTNBENCH_OP_INDEX_KEY_CACHE 1024u /* keys of a sparse indexer into their cache */
#define ATTNBENCH_OP_INDEX_LOGITS 2048u    /* logits of a sparse indexer */
#define ATTNBENCH_OP_INDEX_TOPK 4096u      /* the slots of the largest logits */

/* Element types. */
#define ATTNBENCH_FLOAT32 1u
#define ATTNBENCH_FLOAT16 2u
#define ATTNBENCH_BFLOAT16 4u
#define ATTNBENCH_FP8_E4M3 8u
#define ATTNBENCH_FP8_E5M2 16u
#define ATTNBENCH_UINT8 32u /* bytes: of the fp8_ds_mla cache */
#define ATTNBENCH_INT8 64u  /* codes of int8 */

/* What a problem may ask for beyond plain attention of one head size (AttnbenchBackend::features
 * lists what the plugin can do, AttnbenchProblem::features what the problem needs). */
#define ATTNBENCH_CAUSAL (1ull << 0)
#define ATTNBENCH_NON_CAUSAL (1ull << 1)
#define ATTNBENCH_GQA (1ull << 2)         /* num_kv_heads < num_heads; head h reads h / (H / Hk) */
#define ATTNBENCH_V_HEAD_SIZE (1ull << 3) /* v_head_size != head_size */
#define ATTNBENCH_SLIDING_WINDOW (1ull << 4) /* window_left, window_right */
#define ATTNBENCH_SOFT_CAP (1ull << 5)       /* s = cap * tanh(s / cap) */
#define ATTNBENCH_ALIBI (1ull << 6)          /* alibi_slopes, AttnbenchProblem::alibi */
#define ATTNBENCH_ALIBI_SQRT (1ull << 7)     /* the same with ATTNBENCH_BIAS_SQRT */
#define ATTNBENCH_SINKS (1ull << 8)          /* sinks */
#define ATTNBENCH_MM_PREFIX (1ull << 9)      /* mm_prefix_ranges */
/* Keys of fp8_e4m3 with k_scale and v_scale. MLA: a kv_cache of fp8_e4m3; values are its codes by
 * k_scale, too, and there is no v_scale. */
#define ATTNBENCH_FP8_KV (1ull << 10)
#define ATTNBENCH_FP8_E5M2_KV (1ull << 11) /* keys of fp8_e5m2 with k_scale and v_scale */
#define ATTNBENCH_FP8_OUTPUT (1ull << 12)  /* output is fp8_e4m3 of o / output_scale */
/* Query is fp8_e4m3 of q / q_scale, as the keys: where the problem says so. MLA: always with a
 * kv_cache of fp8_e4m3 and no lists, for a plugin that declares it. */
#define ATTNBENCH_FP8_QUERY (1ull << 13)
/* The kernel rounds its probabilities to e4m3 where the problem says so, and is judged by the wider
 * limits of that. A problem without it asks for 16 bits or more, of every plugin: one that always
 * rounds has to refuse it in supports(), or is judged by the limits of 16 bits. */
#define ATTNBENCH_FP8_PROBABILITY (1ull << 14)
#define ATTNBENCH_MLA_TOPK (1ull << 15) /* MLA: a row sees the entries that its topk_slots name */
/* MLA: kv_cache of fp8_ds_mla entries, 656 bytes each. Bytes 0 to 511 are the latent in fp8_e4m3,
 * 512 to 527 four float32 multipliers of 128 codes each: an element is code * multiplier, rounded
 * to bfloat16. 528 to 655 are the 64 elements of the rope part in bfloat16. There is no k_scale. */
#define ATTNBENCH_MLA_DS_KV (1ull << 16)
/* Keys and values of int8 or fp8_e4m3 with a scale for each token and head, k_scale_cache and
 * v_scale_cache, in pages of ATTNBENCH_KV_PAGED_INTERLEAVED. */
#define ATTNBENCH_TOKEN_HEAD_KV (1ull << 17)
/* Operations: of latents instead of keys and values (op.mla). */
#define ATTNBENCH_LATENTS (1ull << 18)
/* int8 codes (int8_level). Attention, in pages of ATTNBENCH_KV_PAGED: query of int8 with
 * q_token_scale, keys of int8 with k_scale_cache; values at level 1 int8 with v_channel_scale, at
 * level 2 of dtype. Operations: with scales for each token and head, or channel. */
#define ATTNBENCH_INT8_CODES (1ull << 19)
/* Operations: an output with a scale for each group of columns, or in NVFP4 (output_quant). */
#define ATTNBENCH_GROUP_SCALES (1ull << 20)
#define ATTNBENCH_NVFP4 (1ull << 21)
/* Ranks of a decode-context group. Operations: their caches, one behind the other. Attention of
 * ATTNBENCH_DECODER: that of one rank over its part of the context, dcp_rank of dcp_world_size.
 * prepare() is called for each rank, run() of each at its place in the step; attnbench gathers the
 * query, exchanges partial results, attends to the new keys and merges. Of such a call: not causal,
 * all query heads, seq_lens the rank's own keys (which may be 0) in its pages, output float32, and
 * an LSE of ATTNBENCH_LSE_NATURAL, ATTNBENCH_LSE_HT and ATTNBENCH_EMPTY_MINUS_INF. */
#define ATTNBENCH_DCP (1ull << 22)

/* Keys and values as the plugin wants them, where there is a cache; else they are ragged. */
#define ATTNBENCH_KV_RAGGED 0u /* key [S, Hk, D] and value [S, Hk, Dv], requests concatenated */
#define ATTNBENCH_KV_PAGED 1u  /* key_cache, value_cache [NB, bs, Hk, D], each in one piece */
#define ATTNBENCH_KV_PAGED_INTERLEAVED 2u /* the same, K and V of a block side by side */

/* LSE that the plugin writes. */
#define ATTNBENCH_LSE_NONE 0u
#define ATTNBENCH_LSE_NATURAL 1u /* ln of the sum */
#define ATTNBENCH_LSE_BASE_2 2u  /* log2 of the sum */

/* Order in memory of LSEs: a head's tokens side by side, or a token's heads. Their shape is [H, T]
 * either way. */
#define ATTNBENCH_LSE_HT 0u
#define ATTNBENCH_LSE_TH 1u

/* LSE of a row that sees no key; its output is 0. */
#define ATTNBENCH_EMPTY_MINUS_INF 0u
#define ATTNBENCH_EMPTY_PLUS_INF 1u

/* What is added to the score of key j for the query at position p, per head slope m. */
#define ATTNBENCH_BIAS_NONE 0u
#define ATTNBENCH_BIAS_KEY_INDEX 1u /* m * j */
#define ATTNBENCH_BIAS_DISTANCE 2u  /* -m * |p - j| */
#define ATTNBENCH_BIAS_SQRT 3u      /* -m * sqrt(p - j) for j <= p, else 0 */

/* The memory layout of DLPack's DLTensor, so that a pointer may be cast to one. */
typedef struct AttnbenchTensor {
  void* data;
  struct {
    int32_t type; /* 1 = CPU, 2 = CUDA */
    int32_t id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code; /* 0 = int, 2 = float, 4 = bfloat, 10 = float8_e4m3fn, 12 = float8_e5m2 */
    uint8_t bits;
    uint16_t lanes;
  } dtype;
  int64_t* shape;       /* [ndim] */
  int64_t* strides;     /* [ndim], in elements; never NULL */
  uint64_t byte_offset; /* always 0 */
} AttnbenchTensor;

/* AttnbenchProblem::output_quant. */
#define ATTNBENCH_QUANT_NONE 0u
#define ATTNBENCH_QUANT_FP8_STATIC 1u
#define ATTNBENCH_QUANT_FP8_GROUP_128 2u
#define ATTNBENCH_QUANT_FP8_GROUP_64 3u
#define ATTNBENCH_QUANT_NVFP4 4u

/* A tensor of an operation. */
typedef struct AttnbenchOperand {
  const char* name;
  const AttnbenchTensor* tensor;
  uint32_t is_output; /* 0: must stay as it is */
  uint32_t reserved;
} AttnbenchOperand;

/* A resolved case with the names of the scenario file; lengths in tokens. */
typedef struct AttnbenchProblem {
  uint32_t struct_size;
  uint32_t type;  /* one of ATTNBENCH_DECODER, ... */
  uint32_t dtype; /* of query, and of key, value and output unless said otherwise */
  uint32_t device;
  int32_t device_id; /* index of the CUDA device */
  int32_t sm;        /* 90 = compute capability 9.0 */
  int32_t num_sms;
  int32_t num_heads;      /* H */
  int32_t num_kv_heads;   /* Hk */
  int32_t head_size;      /* D */
  int32_t v_head_size;    /* Dv */
  int32_t causal;         /* row i of a request stands at position seq_len - query_len + i = p */
  double scale;           /* s = scale * (q . k) */
  double logits_soft_cap; /* 0 = off */
  /* Key j is seen from p when p - window_left <= j <= p + window_right; -1 = unlimited. The causal
   * rule is in window_right already. */
  int64_t window_left;
  int64_t window_right;
  uint32_t alibi; /* ATTNBENCH_BIAS_NONE, ... */
  int32_t batch_invariant;
  uint64_t features; /* everything that it needs */

  int64_t num_requests; /* B */
  int64_t num_tokens;   /* T = sum of query_lens */
  int64_t num_keys;     /* S = sum of seq_lens */
  int64_t max_query_len;
  int64_t max_seq_len;
  const int64_t* query_lens; /* [B] on the host; 0 = a padding row of the batch */
  const int64_t* seq_lens;   /* [B] on the host; keys, or encoder length of encoder_decoder */

  uint32_t kv_cache_dtype;   /* element type of the cache, or of the ragged keys in its place */
  int32_t block_size;        /* bs */
  int64_t num_blocks;        /* NB */
  int32_t kv_cache_hnd;      /* 1 = heads before slots in memory (kv_cache.layout HND) */
  int32_t num_mm_ranges;     /* R of mm_prefix_ranges */
  int64_t common_prefix_len; /* keys that all requests share, in the same blocks; 0 = none */
  double output_scale;       /* with ATTNBENCH_FP8_OUTPUT */

  const char* scenario;
  const char* case_name;
  const char* json; /* `problem` of the result file: every field, also those without one above */

  int32_t num_threads; /* CPU threads that it may use: --threads, or all cores */
  uint32_t operation;  /* of ATTNBENCH_OP: one of ATTNBENCH_OP_RESHAPE_AND_CACHE, ... */

  int32_t topk; /* K of topk_slots; 0 = none */
  int32_t reserved;
  /* ATTNBENCH_OP_MERGE: rows that have a prefix, the first ones; the others are their suffix, and
   * hold NaN in the prefix. */
  int64_t num_merged_tokens;

  /* Version 2. Of latents (mla.*); 0 without them. */
  int32_t kv_lora_rank;
  int32_t qk_nope_head_dim;
  int32_t qk_rope_head_dim;
  int32_t index_n_heads;       /* of the indexer: ATTNBENCH_OP_INDEX_... */
  int32_t index_ue8m0;         /* scales of its keys are powers of two */
  int32_t int8_level;          /* kv_cache.int8_level */
  int32_t rotary_dim;          /* rotated elements of a head; 0 = nothing is rotated */
  int32_t is_neox;             /* pairs are halves of the rotated part; 0 = neighbours */
  int32_t is_raw;              /* gather: bits are copied (op.raw) */
  int32_t lse_is_base_2;       /* dcp_correct: the incoming LSEs */
  uint32_t output_quant;       /* ATTNBENCH_QUANT_NONE, ... */
  int32_t scales_are_ue8m0;    /* of output_quant in groups: rounded up to powers of two */
  int32_t scales_are_swizzled; /* of NVFP4: in tiles of 128 rows and 4 scales */
  int32_t dcp_world_size;      /* ranks; 1 = no group */
  int32_t dcp_comm;            /* dcp_correct: 0 ag_rs, 1 ag_ar, 2 a2a */
  int32_t amax_is_signed;      /* mm_quant: the largest element instead of magnitude */
  int32_t dcp_rank;            /* attention of ATTNBENCH_DCP: whose keys these are */
  int32_t reserved2;
} AttnbenchProblem;

/* Memory of the device, NULL where the problem or the plugin has no use for it. Everything but
 * output, lse and what host->allocate() gave must stay as it is, and the caches of
 * ATTNBENCH_OP_RESHAPE_AND_CACHE. For attention the cache is complete: new keys and values are
 * written before run(). */
typedef struct AttnbenchTensors {
  uint32_t struct_size;
  uint32_t reserved;
  const AttnbenchTensor* query;     /* [T, H, D] */
  const AttnbenchTensor* output;    /* [T, H, Dv] */
  const AttnbenchTensor* lse;       /* float32 [H, T], in the order of lse_axes */
  const AttnbenchTensor* key;       /* [S, Hk, D] */
  const AttnbenchTensor* value;     /* [S, Hk, Dv] */
  const AttnbenchTensor* key_cache; /* [NB, bs, Hk, D] with the strides of the layout; slots past */
  const AttnbenchTensor* value_cache;     /* [NB, bs, Hk, D]   the end of a request hold NaN */
  const AttnbenchTensor* block_table;     /* int32 [B, MB]; garbage past the blocks of a request */
  const AttnbenchTensor* query_start_loc; /* int32 [B+1]: first row of each request, then T */
  const AttnbenchTensor* seq_lens;        /* int32 [B] */
  const AttnbenchTensor* key_start_loc; /* int64 [B+1]: first row of key of each request, then S */
  const AttnbenchTensor* k_scale;       /* float32 [Hk]: key = code * k_scale */
  const AttnbenchTensor* v_scale;       /* float32 [Hk]; NULL for MLA */
  const AttnbenchTensor* alibi_slopes;  /* float32 [H] */
  const AttnbenchTensor* sinks;         /* float32 [H]: one more score of each row, with value 0 */
  const AttnbenchTensor* mm_prefix_ranges; /* int32 [B, R, 2]: see each other, both ends included;
                                              (0, 0) = unused */

  const AttnbenchTensor* q_scale;    /* float32 [1]: query = code * q_scale */
  const AttnbenchTensor* kv_cache;   /* MLA: [NB, bs, D] entries, latent first; fp8_ds_mla: uint8
                                        [NB, bs, 656]. Slots past the end of a request hold NaN */
  const AttnbenchTensor* topk_slots; /* int32 [T, K]: block * bs + slot in the cache, -1 = none; in
                                        no order. A slot that comes twice counts twice. All -1 in
                                        prepare(), and others in some of the runs */
  /* Operations. reshape_and_cache has key and value [N, Hk, D], N >= T, and the two caches; rows
   * past T have negative slots, as in a batch that is padded for a graph. */
  const AttnbenchTensor* slot_mapping; /* int64 [N]: block * bs + slot; in place in prepare() */
  /* merge has output and lse as well. */
  const AttnbenchTensor* prefix_output; /* [T, H, Dv], by its strides: its heads lie max(D, Dv)
                                           elements apart, as those of an output of padded values */
  const AttnbenchTensor* prefix_lse;    /* float32 [H, T], in the order of lse_axes */
  const AttnbenchTensor* suffix_output; /* [T, H, Dv] */
  const AttnbenchTensor* suffix_lse;    /* float32 [H, T], in the order of lse_axes */

  /* Version 2. ATTNBENCH_TOKEN_HEAD_KV, by their strides: key = code * k_scale_cache. */
  const AttnbenchTensor* k_scale_cache; /* float32 [NB, bs, Hk] */
  const AttnbenchTensor* v_scale_cache; /* float32 [NB, bs, Hk] */
  /* Operations other than reshape_and_cache of keys and values in floats or fp8, and merge. */
  const AttnbenchOperand* operands; /* [num_operands] */
  int64_t num_operands;
  /* ATTNBENCH_INT8_CODES, attention: query = code * q_token_scale, and at level 1 value = code *
   * v_channel_scale. */
  const AttnbenchTensor* q_token_scale;   /* float32 [T, H], by its strides */
  const AttnbenchTensor* v_channel_scale; /* float32 [Hk, Dv] */
} AttnbenchTensors;

/* What attnbench does for a plugin during prepare(). */
typedef struct AttnbenchHost {
  uint32_t struct_size;
  uint32_t reserved;
  void* context; /* of attnbench */
  void* stream;  /* cudaStream_t of all work, also of run(); NULL on the CPU */
  /* Device memory for partial results and the like: between guard zones, poisoned with 0xFF before
   * a run that is judged, freed after destroy(). NULL when there is none left, and after prepare():
   * asking for more then ends the case as an error. */
  void* (*allocate)(const struct AttnbenchHost* host, size_t size_bytes, const char* name);
} AttnbenchHost;

typedef struct AttnbenchBackend {
  uint32_t struct_size; /* sizeof(AttnbenchBackend) */
  uint32_t abi_version; /* ATTNBENCH_ABI_VERSION */
  const char* name;     /* last part of result ids: letters, digits, '.', '_', '-', ':' */
  const char* version;
  const char* description; /* for `attnbench list backends --plugin`; may be NULL */
  const void* user;        /* whatever the plugin likes */

  /* What it can do; anything else is "unsupported" before supports() is asked. */
  uint32_t devices;
  uint32_t attention_types;
  uint32_t dtypes;
  uint32_t kv;  /* ATTNBENCH_KV_RAGGED, ... */
  uint32_t lse; /* ATTNBENCH_LSE_NONE, ... */
  uint32_t empty_rows;
  uint64_t features;

  /* NULL = yes, or the reason why not (several: a line each; a blank text is a no as well). Must
   * not touch a device: it is asked on machines without one. May be NULL: yes to all. */
  const char* (*supports)(const struct AttnbenchBackend* self, const AttnbenchProblem* problem);
  /* Not timed: allocates, compiles, plans. Sets *state, which the other two get. Arguments live
   * until destroy(); lengths and block table are in place, query, keys and values are still NaN,
   * topk_slots all -1.
   * May be called again before the first state is destroyed. */
  const char* (*prepare)(const struct AttnbenchBackend* self, const AttnbenchProblem* problem,
                         const AttnbenchTensors* tensors, const AttnbenchHost* host, void** state);
  /* Queues the whole attention on the stream and returns without waiting; on the CPU it is done on
   * return. Called many times, also with other values in the same memory. Must compute everything
   * anew each time and give the same bytes for the same values (but see nondeterministic), and must
   * not allocate or synchronize, so that it can be captured in a graph. A timed run has a query
   * that no run had before; inputs, outputs and workspaces are NaN until its turn on the stream
   * comes. */
  const char* (*run)(void* state, void* stream);
  /* Called once for a state of a prepare() that succeeded, whatever follows. May be NULL. */
  void (*destroy)(void* state);

  /* Not 0: two runs on the same values may differ in their last bits, so the rule of the same bytes
   * does not hold. Each run that is looked at is then judged by its error. */
  uint32_t nondeterministic;
  uint32_t operations; /* with ATTNBENCH_OP: ATTNBENCH_OP_RESHAPE_AND_CACHE | ... */
  uint32_t lse_axes;   /* ATTNBENCH_LSE_HT, ... */
  uint32_t reserved;
} AttnbenchBackend;

#if defined(__GNUC__)
#define ATTNBENCH_EXPORT __attribute__((visibility("default")))
#else
#define ATTNBENCH_EXPORT
#endif

/* Called with 0, 1, ... until it returns NULL. What it returns lives as long as the library.
 * Neither it nor loading the library may touch a device: both happen on machines without one. The
 * library is loaded more than once, each time in another process; it must say the same each time.
 */
ATTNBENCH_EXPORT const AttnbenchBackend* attnbench_backend(uint32_t index);

#ifdef __cplusplus
}
#endif

#endif /* ATTNBENCH_BACKEND_H_ */
