// The losses of eq. (1) of every sample, and the gradients of their weighted mean over a device's samples with
// respect to its logits.
//
// Each thread processes one sample; logits are stored as [device][class][sample]. `rows` and `known` are the target; a
// sample uses the row of its label. Losses are [loss][device][sample]: cross-entropy, and distillation without its
// weight.
// grid: (devices * samples / THREADS)
extern "C" __global__ void loss_gradients(
    const float* __restrict__ logits, const long long* __restrict__ labels, const float* __restrict__ rows,
    const float* __restrict__ known, float* __restrict__ gradients, float* __restrict__ losses, int num_devices,
    int num_classes, int num_samples, int has_target, double distill_weight) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x, num_all = (long long)num_devices * num_samples;
  if (at >= num_all) return;
  const long long first = at / num_samples * num_classes * num_samples + at % num_samples;
  const float* own = logits + first;
  const int label = labels[at];
  const float* row = rows + (size_t)label * num_classes;
  const float weight = has_target ? 2.0f * (float)distill_weight * known[label] : 0.0f;

  float largest = own[0], sum = 0.0f;
  for (int each = 1; each < num_classes; ++each) largest = fmaxf(largest, own[(size_t)each * num_samples]);
  for (int each = 0; each < num_classes; ++each) sum += expf(own[(size_t)each * num_samples] - largest);
  const float log_sum = logf(sum);
  float squares = 0.0f, pull = 0.0f;  // the distillation loss, and its gradient along the prediction
  if (has_target)
    for (int each = 0; each < num_classes; ++each) {
      const float prediction = expf(own[(size_t)each * num_samples] - largest - log_sum);
      const float apart = prediction - row[each];
      squares = fmaf(apart, apart, squares);
      pull = fmaf(prediction, apart, pull);
    }
  losses[at] = largest + log_sum - own[(size_t)label * num_samples];
  losses[num_all + at] = has_target ? squares * known[label] : 0.0f;
  for (int each = 0; each < num_classes; ++each) {
    const float prediction = expf(own[(size_t)each * num_samples] - largest - log_sum);
    float gradient = prediction - (each == label ? 1.0f : 0.0f);
    if (has_target) gradient = fmaf(weight * prediction, prediction - row[each] - pull, gradient);
    gradients[first + (size_t)each * num_samples] = gradient / num_samples;
  }
}
