// Convolution, 2x2 max-pooling and ReLU, forward and backward, for many devices with different weights.
//
// Each thread processes one sample, and adjacent threads adjacent samples. Features are stored as
// [device][channel, row, column][sample], and so memory accesses are coalesced and all threads of a warp need the same
// weight at the same time. A "cell" is a 2x2 pooling window of the convolution's output. The order of all sums depends
// only on the sizes, and so results are reproducible bit by bit.
//
// Sizes are compile-time constants. The launching code defines them in front of this file, with the name of the kernel
// to compile:
//   CIN, H, W, COUT, KH, KW   channels and size of the input, channels of the output, size of the kernel
//   WARPS, RESIDENT           warps in a block, and blocks that must be resident on a multiprocessor at once
//   CELLS, CO_TILE, CI_CHUNK  forward: cells and output channels of a thread, input channels in shared memory at once
//   CO_GRADIENTS, CELLS_AT_ONCE  weight gradients: output channels of a thread, cells that its loop is unrolled for
//   HELD                      sparse weight gradients: samples in shared memory at once
//   TILE_W, CO_CHUNK          input gradients: columns of a thread, output channels in shared memory at once

#define PH ((H - KH + 1) / 2)
#define PW ((W - KW + 1) / 2)
#define K (KH * KW)
#define THREADS (32 * WARPS)
#define UP(number, multiple) (((number) + (multiple) - 1) / (multiple) * (multiple))
#define NOT_KEPT 4  // the ReLU was inactive, and the gradient is zero

typedef unsigned char Kept;  // position of a cell's maximum: 2 * row + column, or NOT_KEPT

#ifdef BLOCK_FORWARD
// grid: (tiles of cells and of output channels, samples / 32, devices)
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) block_forward(
    const float* __restrict__ samples, const float* __restrict__ weights, const float* __restrict__ biases,
    float* __restrict__ outputs, Kept* __restrict__ kept, int num_samples, int same_samples, int has_bias, int keeps) {
  constexpr int TILES_X = (PW + CELLS - 1) / CELLS, CO_TILES = (COUT + CO_TILE - 1) / CO_TILE;
  constexpr int PATCH_W = KW - 1 + 2 * CELLS, ROW = UP(CO_TILE, 4);
  __shared__ __align__(16) float shared[CI_CHUNK * K * ROW];
  const int device = blockIdx.z, first_channel = (blockIdx.x % CO_TILES) * CO_TILE;
  const int tile = blockIdx.x / CO_TILES * WARPS + threadIdx.x / 32;
  const int py = tile / TILES_X, first_px = tile % TILES_X * CELLS;
  const int sample = blockIdx.y * 32 + threadIdx.x % 32;
  const float* own = samples + (same_samples ? 0 : (size_t)device * (CIN * H * W) * num_samples) +
                     min(sample, num_samples - 1);
  const float* own_weights = weights + (size_t)device * (COUT * CIN * K);
  float sums[2][2 * CELLS][CO_TILE];
#pragma unroll
  for (int channel = 0; channel < CO_TILE; ++channel) {
    const float bias = has_bias ? biases[device * COUT + min(first_channel + channel, COUT - 1)] : 0.0f;
#pragma unroll
    for (int dy = 0; dy < 2; ++dy)
#pragma unroll
      for (int x = 0; x < 2 * CELLS; ++x) sums[dy][x][channel] = bias;
  }
  for (int chunk = 0; chunk < CIN; chunk += CI_CHUNK) {
    __syncthreads();
    for (int at = threadIdx.x; at < CI_CHUNK * K * ROW; at += THREADS) {
      const int channel = first_channel + at % ROW, tap = at / ROW % K, input = chunk + at / (ROW * K);
      const bool is_one = at % ROW < CO_TILE && channel < COUT && input < CIN;
      shared[at] = is_one ? own_weights[(channel * CIN + input) * K + tap] : 0.0f;
    }
    __syncthreads();
    if (py >= PH) continue;
    for (int input = chunk; input < min(chunk + CI_CHUNK, CIN); ++input) {
      const float* plane = own + (size_t)(input * H + 2 * py) * W * num_samples;
      const float* taps = shared + (input - chunk) * (K * ROW);
      float patch[KH + 1][PATCH_W];
#pragma unroll
      for (int y = 0; y <= KH; ++y)
#pragma unroll
        for (int x = 0; x < PATCH_W; ++x) {
          const int column = PW % CELLS == 0 ? 2 * first_px + x : min(2 * first_px + x, W - 1);
          patch[y][x] = plane[(y * W + column) * num_samples];
        }
#pragma unroll
      for (int ky = 0; ky < KH; ++ky)
#pragma unroll
        for (int kx = 0; kx < KW; ++kx) {
          float tap[ROW];
#pragma unroll
          for (int four = 0; four < ROW; four += 4)
            *(float4*)(tap + four) = *(const float4*)(taps + (ky * KW + kx) * ROW + four);
#pragma unroll
          for (int channel = 0; channel < CO_TILE; ++channel)
#pragma unroll
            for (int dy = 0; dy < 2; ++dy)
#pragma unroll
              for (int x = 0; x < 2 * CELLS; ++x)
                sums[dy][x][channel] = fmaf(patch[ky + dy][kx + x], tap[channel], sums[dy][x][channel]);
        }
    }
  }
  if (py >= PH || sample >= num_samples) return;
  const size_t device_start = (size_t)device * (COUT * PH * PW) * num_samples + sample;
#pragma unroll
  for (int channel = 0; channel < CO_TILE; ++channel)
#pragma unroll
    for (int cell = 0; cell < CELLS; ++cell) {
      if (first_channel + channel >= COUT || first_px + cell >= PW) continue;
      float largest = sums[0][2 * cell][channel];
      int place = 0;
#pragma unroll
      for (int other = 1; other < 4; ++other) {
        const float value = sums[other / 2][2 * cell + other % 2][channel];
        if (value > largest || value != value) largest = value, place = other;  // NaN is propagated
      }
      const size_t at =
          device_start + (size_t)(((first_channel + channel) * PH + py) * PW + first_px + cell) * num_samples;
      outputs[at] = largest <= 0.0f ? 0.0f : largest;
      if (keeps) kept[at] = largest <= 0.0f ? NOT_KEPT : place;
    }
}
#endif

#ifdef WEIGHT_GRADIENTS
// A partial sum: over every `gridDim.y`-th of all pairs of 32 samples and a row of cells, starting at the part's index.
// grid: (input channels and tiles of output channels, parts, devices)
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) weight_gradients(
    const float* __restrict__ samples, const float* __restrict__ gradients, const Kept* __restrict__ kept,
    float* __restrict__ of_weights, float* __restrict__ of_biases, int num_samples, int same_samples) {
  constexpr int CO_TILES = (COUT + CO_GRADIENTS - 1) / CO_GRADIENTS, AT_ONCE = CELLS_AT_ONCE;
  const int task = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, device = blockIdx.z;
  const int input = task / CO_TILES, first_channel = task % CO_TILES * CO_GRADIENTS;
  if (input >= CIN) return;
  const float* plane = samples + ((same_samples ? 0 : (size_t)device * CIN) + input) * (H * W) * num_samples;
  const size_t cells = ((size_t)device * COUT + first_channel) * (PH * PW) * num_samples;
  float sums[CO_GRADIENTS][K] = {}, bias_sums[CO_GRADIENTS] = {};
#pragma unroll 1
  for (int pair = blockIdx.y; pair < (num_samples + 31) / 32 * PH; pair += gridDim.y) {
    const int py = pair % PH, start = pair / PH * 32;
    const bool is_one = start + lane < num_samples;
    const int sample = min(start + lane, num_samples - 1);
    const float* rows = plane + (size_t)(2 * py) * W * num_samples + sample;
    float patch[KH + 1][KW + 1];
#pragma unroll
    for (int y = 0; y <= KH; ++y)
#pragma unroll
      for (int x = 2; x <= KW; ++x) patch[y][x] = rows[(y * W + x - 2) * num_samples];
#pragma unroll AT_ONCE
    for (int px = 0; px < PW; ++px) {
      float gradient[CO_GRADIENTS];
      int place[CO_GRADIENTS];
#pragma unroll
      for (int channel = 0; channel < CO_GRADIENTS; ++channel) {
        const bool is_channel = COUT % CO_GRADIENTS == 0 || first_channel + channel < COUT;
        const int cell = (is_channel ? channel : 0) * (PH * PW) + py * PW + px;
        const size_t at = cells + (size_t)cell * num_samples + sample;
        gradient[channel] = gradients[at];
        place[channel] = is_one && is_channel ? kept[at] : NOT_KEPT;
      }
#pragma unroll
      for (int y = 0; y <= KH; ++y) {
#pragma unroll
        for (int x = 0; x < KW - 1; ++x) patch[y][x] = patch[y][x + 2];
#pragma unroll
        for (int x = KW - 1; x <= KW; ++x) patch[y][x] = rows[(y * W + 2 * px + x) * num_samples];
      }
#pragma unroll
      for (int channel = 0; channel < CO_GRADIENTS; ++channel) {
        bias_sums[channel] += place[channel] == NOT_KEPT ? 0.0f : gradient[channel];
#pragma unroll
        for (int other = 0; other < 4; ++other) {
          const float its_gradient = place[channel] == other ? gradient[channel] : 0.0f;
#pragma unroll
          for (int ky = 0; ky < KH; ++ky)
#pragma unroll
            for (int kx = 0; kx < KW; ++kx)
              sums[channel][ky * KW + kx] =
                  fmaf(its_gradient, patch[ky + other / 2][kx + other % 2], sums[channel][ky * KW + kx]);
        }
      }
    }
  }
  const size_t part = (size_t)blockIdx.y * gridDim.z + device;
#pragma unroll
  for (int channel = 0; channel < CO_GRADIENTS; ++channel) {
    const bool is_channel = first_channel + channel < COUT;
#pragma unroll
    for (int tap = 0; tap <= K; ++tap) {
      float sum = tap < K ? sums[channel][tap % K] : bias_sums[channel];
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      if (!is_channel || lane != tap % 32) continue;
      if (tap < K)
        of_weights[((part * COUT + first_channel + channel) * CIN + input) * K + tap] = sum;
      else if (input == 0)
        of_biases[part * COUT + first_channel + channel] = sum;
    }
  }
}
#endif

#ifdef SPARSE_WEIGHT_GRADIENTS
// Copies from global to shared memory asynchronously; `wait_for_copies` waits for completion.
__device__ __forceinline__ void copy_later(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#else
  *to = *from;
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The sums of weight_gradients, but the threads of a warp share the taps of a kernel. A warp processes one output of
// the block at a time, reads only the input at that output's maximum, and skips outputs with zero gradient.
// A partial sum: over every `gridDim.x`-th group of HELD samples, starting at the part's index.
// grid: (parts, devices)
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) sparse_weight_gradients(
    const float* __restrict__ samples, const float* __restrict__ gradients, const Kept* __restrict__ kept,
    float* __restrict__ of_weights, float* __restrict__ of_biases, int num_samples, int same_samples) {
  constexpr int TOGETHER = K < 32 ? 32 / K : 1, TURNS = (K + 31) / 32;  // input channels of a warp at once, or turns per channel
  constexpr int GROUPS = (CIN + TOGETHER - 1) / TOGETHER, CHANNELS = (COUT + WARPS - 1) / WARPS;
  constexpr int PAIRS = (CHANNELS + 1) / 2, STRIDE = 2 * PAIRS * WARPS;
  constexpr int PITCH = UP(CIN * H * W, 32) + 32 / HELD;  // avoids bank conflicts when writing
  __shared__ float images[HELD * PITCH + TOGETHER * H * W];
  __shared__ float4 entries[HELD * PH * PW * STRIDE / 2];  // of two channels each: gradient and position
  const int device = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* own = samples + (same_samples ? 0 : (size_t)device * (CIN * H * W) * num_samples);
  const size_t cells = (size_t)device * (COUT * PH * PW) * num_samples;
  int reach[TURNS];
#pragma unroll
  for (int turn = 0; turn < TURNS; ++turn) {
    const int tap = min(turn * 32 + (TURNS == 1 ? lane % K : lane), K - 1);
    reach[turn] = (TURNS == 1 ? min(lane / K, TOGETHER - 1) * (H * W) : 0) + tap / KW * W + tap % KW;
  }
  float sums[CHANNELS][GROUPS * TURNS] = {}, bias_sums[CHANNELS] = {};
#pragma unroll 1
  for (int first = blockIdx.x * HELD; first < num_samples; first += gridDim.x * HELD) {
    __syncthreads();
    for (int at = threadIdx.x; at < HELD * CIN * H * W; at += THREADS) {
      const int sample = min(first + at % HELD, num_samples - 1);
      copy_later(images + at % HELD * PITCH + at / HELD, own + (size_t)(at / HELD) * num_samples + sample);
    }
#pragma unroll 4
    for (int at = threadIdx.x; at < HELD * PH * PW * STRIDE; at += THREADS) {
      const int held = at % HELD, cell = at / HELD % (PH * PW), entry = at / (HELD * PH * PW);
      const int channel = entry / (2 * PAIRS) * CHANNELS + entry % (2 * PAIRS);
      const bool is_one = entry % (2 * PAIRS) < CHANNELS && channel < COUT && first + held < num_samples;
      const size_t from =
          is_one ? cells + (size_t)(channel * PH * PW + cell) * num_samples + first + held : cells;
      const int place = kept[from];
      const float gradient = gradients[from];
      const int row = 2 * (cell / PW) + place / 2, column = 2 * (cell % PW) + place % 2;
      ((float2*)entries)[(held * PH * PW + cell) * STRIDE + entry] =
          make_float2(is_one && place != NOT_KEPT ? gradient : 0.0f, __int_as_float(held * PITCH + row * W + column));
    }
    wait_for_copies();
    __syncthreads();
#pragma unroll 1
    for (int output = 0; output < HELD * PH * PW; ++output) {
      float4 pairs[PAIRS];
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) pairs[pair] = entries[(output * WARPS + warp) * PAIRS + pair];
#pragma unroll
      for (int channel = 0; channel < CHANNELS; ++channel) {
        const float4 pair = pairs[channel / 2];
        const float gradient = channel % 2 ? pair.z : pair.x;
        if (gradient == 0.0f) continue;
        const float* image = images + __float_as_int(channel % 2 ? pair.w : pair.y);
        bias_sums[channel] += gradient;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
          for (int turn = 0; turn < TURNS; ++turn) {
            float& sum = sums[channel][group * TURNS + turn];
            sum = fmaf(gradient, image[reach[turn] + group * (TOGETHER * H * W)], sum);
          }
      }
    }
  }
  const size_t part = (size_t)blockIdx.x * gridDim.y + device;
#pragma unroll
  for (int channel = 0; channel < CHANNELS; ++channel) {
    const int output = warp * CHANNELS + channel;
    if (output >= COUT) continue;
    if (lane == 0) of_biases[part * COUT + output] = bias_sums[channel];
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const int input = group * TOGETHER + (TURNS == 1 ? lane / K : 0);
        const int tap = TURNS == 1 ? lane % K : turn * 32 + lane;
        if (lane < TOGETHER * K && input < CIN && tap < K)
          of_weights[((part * COUT + output) * CIN + input) * K + tap] = sums[channel][group * TURNS + turn];
      }
  }
}
#endif

#ifdef INPUT_GRADIENTS
// A thread moves down the image with a band of KH + 1 rows of the gradient, the rows that a row of cells affects.
// grid: (tiles of columns and input channels / WARPS, samples / 32, devices)
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) input_gradients(
    const float* __restrict__ weights, const float* __restrict__ gradients, const Kept* __restrict__ kept,
    float* __restrict__ of_inputs, int num_samples) {
  constexpr int TILES = (W + TILE_W - 1) / TILE_W, ROW = UP(K, 4), CHUNKS = (COUT + CO_CHUNK - 1) / CO_CHUNK;
  constexpr int LEFT = TILES == 1 ? 0 : KW / 2;  // cells left of the tile that affect it
  constexpr int NEAR = (TILE_W + 1) / 2 + LEFT;
  constexpr int CELLS_NEAR = TILES == 1 && PW < NEAR ? PW : NEAR;
  __shared__ __align__(16) float shared[CO_CHUNK * WARPS * ROW];
  const int device = blockIdx.z, warp = threadIdx.x / 32;
  const int first_column = TILES == 1 ? 0 : blockIdx.x % TILES * TILE_W;
  const int first_input = blockIdx.x / TILES * WARPS, input = first_input + warp;
  const int sample = blockIdx.y * 32 + threadIdx.x % 32;
  const bool works = input < CIN && sample < num_samples;
  const float* own_weights = weights + (size_t)device * (COUT * CIN * K);
  const size_t cells = (size_t)device * (COUT * PH * PW) * num_samples + min(sample, num_samples - 1);
  float* plane = of_inputs + ((size_t)device * CIN + min(input, CIN - 1)) * (H * W) * num_samples + sample;
  float band[KH + 1][TILE_W] = {};
#pragma unroll 1
  for (int py = 0; py < PH; ++py) {
    for (int chunk = 0; chunk < COUT; chunk += CO_CHUNK) {
      if (CHUNKS > 1 || py == 0) {
        __syncthreads();
        for (int at = threadIdx.x; at < CO_CHUNK * WARPS * ROW; at += THREADS) {
          const int tap = at % ROW, channel = chunk + at / (ROW * WARPS), from = first_input + at / ROW % WARPS;
          const bool is_one = tap < K && channel < COUT && from < CIN;
          shared[at] = is_one ? own_weights[(channel * CIN + from) * K + tap] : 0.0f;
        }
        __syncthreads();
      }
#pragma unroll 1
      for (int channel = chunk; channel < min(chunk + CO_CHUNK, COUT); ++channel) {
        float gradient[CELLS_NEAR], taps[ROW];
        int place[CELLS_NEAR];
#pragma unroll
        for (int cell = 0; cell < CELLS_NEAR; ++cell) {
          const int px = first_column / 2 + cell - LEFT;
          const bool is_cell = TILES == 1 || (px >= 0 && px < PW);
          const size_t at = cells + (size_t)((channel * PH + py) * PW + (is_cell ? px : 0)) * num_samples;
          gradient[cell] = gradients[at];
          place[cell] = is_cell ? kept[at] : NOT_KEPT;
        }
#pragma unroll
        for (int four = 0; four < ROW; four += 4)
          *(float4*)(taps + four) = *(const float4*)(shared + ((channel - chunk) * WARPS + warp) * ROW + four);
#pragma unroll
        for (int cell = 0; cell < CELLS_NEAR; ++cell)
#pragma unroll
          for (int other = 0; other < 4; ++other) {
            const float its_gradient = place[cell] == other ? gradient[cell] : 0.0f;
#pragma unroll
            for (int ky = 0; ky < KH; ++ky)
#pragma unroll
              for (int kx = 0; kx < KW; ++kx) {
                const int column = 2 * (cell - LEFT) + other % 2 + kx;
                if (column < 0 || column >= TILE_W) continue;
                band[ky + other / 2][column] =
                    fmaf(its_gradient, taps[ky * KW + kx], band[ky + other / 2][column]);
              }
          }
      }
    }
#pragma unroll
    for (int y = 0; y <= KH; ++y)
#pragma unroll
      for (int x = 0; x < TILE_W; ++x) {
        const bool is_done = y < 2 || py == PH - 1;
        if (works && is_done && first_column + x < W)
          plane[(size_t)((2 * py + y) * W + first_column + x) * num_samples] = band[y][x];
        band[y][x] = y + 2 <= KH ? band[y + 2 <= KH ? y + 2 : 0][x] : 0.0f;
      }
  }
  if (!works) return;
  for (int y = 2 * PH + KH - 1; y < H; ++y)  // no cell affects the last row of some images
    for (int x = first_column; x < min(first_column + TILE_W, W); ++x) plane[(size_t)(y * W + x) * num_samples] = 0.0f;
}
#endif
