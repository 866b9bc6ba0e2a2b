"""The computations of one device, compiled by Numba: predictions, class means, gradients, and training steps.

`weights` is the vector of a network's parameters with its padding (`layout_of`); samples are `[sample, feature]`.
Class sums and losses are in float64, everything else in float32.
"""

from __future__ import annotations

import numpy as np

from airdistill.learning.fused.backward import (
    add_block_gradients,
    add_gradient,
    add_layer_gradients,
    arrange_weights,
    backpropagate_layers,
)
from airdistill.learning.fused.compiling import compiled
from airdistill.learning.fused.evaluating import evaluate
from airdistill.learning.fused.forward import forward, gather
from airdistill.learning.fused.lanes import LANES
from airdistill.learning.fused.layout import (
    BIAS,
    BIAS_GRADIENT,
    CHANNELS_IN,
    CHANNELS_OUT,
    INPUT,
    KERNEL_HEIGHT,
    KERNEL_VECTORS,
    KERNEL_WIDTH,
    LAYER_INPUT,
    LAYER_OUTPUT_GRADIENT,
    NUM_INPUTS,
    NUM_OUTPUTS,
    WEIGHT_GRADIENT,
)


@compiled
def _load_input(net, samples, indices, count, work, saved):
    """Copy the samples with these indices to the network's input."""
    if len(net.blocks) > 0:
        gather(samples, indices, count, work, net.blocks[0, INPUT])
    else:
        gather(samples, indices, count, saved, net.layers[0, LAYER_INPUT])


@compiled
def predict(net, tilings, weights, values, samples, work, saved, tiles, logits):
    """Logits `[sample, class]` of all samples."""
    indices = np.arange(len(samples))
    for start in range(0, len(samples), LANES):
        count = min(LANES, len(samples) - start)
        _load_input(net, samples, indices[start:], count, work, saved)
        evaluate(net, tilings, weights, values, work, saved, tiles)
        for klass in range(net.num_classes):
            for lane in range(count):
                logits[start + lane, klass] = saved[net.logits + klass * LANES + lane]


@compiled
def _probabilities(logits, start, lane, out):
    """Write the softmax of one lane's logits to `out`; return their log-sum-exp."""
    largest = np.float64(logits[start + lane])
    for klass in range(1, len(out)):
        largest = max(largest, np.float64(logits[start + klass * LANES + lane]))
    total = 0.0
    for klass in range(len(out)):
        out[klass] = np.exp(np.float64(logits[start + klass * LANES + lane]) - largest)
        total += out[klass]
    for klass in range(len(out)):
        out[klass] /= total
    return largest + np.log(total)


@compiled
def class_sums(net, weights, samples, labels, saved, argmax, save, sums):
    """Add every sample's prediction to the row of its label in `sums` `[class, class]`.

    With `save`, `saved` and `argmax` have one row per group, for the backward pass; else they have a single row.
    """
    work, indices = np.empty(net.work, dtype=np.float32), np.arange(len(samples))
    prediction = np.empty(net.num_classes, dtype=np.float64)
    for start in range(0, len(samples), LANES):
        count, group = min(LANES, len(samples) - start), start // LANES if save else 0
        _load_input(net, samples, indices[start:], count, work, saved[group])
        forward(net, weights, work, saved[group], argmax[group], save)
        for lane in range(count):
            _probabilities(saved[group], net.logits, lane, prediction)
            for klass in range(net.num_classes):
                sums[labels[start + lane], klass] += prediction[klass]


@compiled
def _loss_gradient(net, saved, work, labels, indices, count, target, known, weight, share, losses):
    """The gradient of share · (cross-entropy + weight · ‖prediction − row of its label in the target‖²) for the logits.

    Also adds the two losses.
    """
    start, prediction = net.layers[-1, LAYER_OUTPUT_GRADIENT], np.empty(net.num_classes, dtype=np.float64)
    for lane in range(LANES):
        if lane >= count:
            for klass in range(net.num_classes):
                work[start + klass * LANES + lane] = 0.0
            continue
        label = labels[indices[lane]]
        log_total = _probabilities(saved, net.logits, lane, prediction)
        losses[0] += share * (log_total - np.float64(saved[net.logits + label * LANES + lane]))
        distance = along = 0.0
        factor = weight * known[label]
        if factor != 0.0:
            for klass in range(net.num_classes):
                difference = prediction[klass] - target[label, klass]
                distance += difference * difference
                along += difference * prediction[klass]
            losses[1] += share * known[label] * distance
        for klass in range(net.num_classes):
            derivative = prediction[klass] - (1.0 if klass == label else 0.0)
            if factor != 0.0:
                derivative += factor * 2.0 * prediction[klass] * (prediction[klass] - target[label, klass] - along)
            work[start + klass * LANES + lane] = share * derivative


@compiled
def _backward(net, weights, count, work, saved, argmax, sums):
    """Add the gradients of a group; the gradients of its logits are already in `work`."""
    backpropagate_layers(net, weights, work, saved)
    add_layer_gradients(net, work, saved, sums)
    add_block_gradients(net, count, work, saved, argmax, sums, 0)


@compiled
def full_batch_gradient(
    net, weights, samples, labels, target, known, weight, saved, argmax, is_saved, chunk, gradient, losses
):
    """Add the gradient of eq. (1) and its two mean losses; with `is_saved`, from the forward pass of `class_sums`.

    Partial sums restart with every `chunk` of groups, because a long float32 sum would lose small terms.
    """
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    indices, share = np.arange(len(samples)), 1.0 / len(samples)
    arrange_weights(net, weights, work)
    num_groups = (len(samples) + LANES - 1) // LANES
    for number in range(num_groups):
        start, group = number * LANES, number if is_saved else 0
        count = min(LANES, len(samples) - start)
        if not is_saved or len(net.blocks) > 0:
            _load_input(net, samples, indices[start:], count, work, saved[group])
        if not is_saved:
            forward(net, weights, work, saved[group], argmax[group], True)
        _loss_gradient(net, saved[group], work, labels, indices[start:], count, target, known, weight, share, losses)
        _backward(net, weights, count, work, saved[group], argmax[group], sums)
        if (number + 1) % chunk == 0 or number + 1 == num_groups:
            add_gradient(net, sums, gradient)
            sums[:] = 0.0


@compiled
def local_epochs(net, weights, samples, labels, target, known, weight, orders, batch_size, lr, losses):
    """Epochs of minibatch steps over the samples in these `orders` `[epoch, sample]`; adds the mean losses."""
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    saved, argmax = np.empty(net.saved, dtype=np.float32), np.empty(net.argmax, dtype=np.uint8)
    gradient, step_losses = np.empty(len(weights), dtype=np.float32), np.empty(2, dtype=np.float64)
    for number in range(len(orders)):
        order = orders[number]
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            arrange_weights(net, weights, work)
            gradient[:] = 0.0
            step_losses[:] = 0.0
            for start in range(0, len(batch), LANES):
                count = min(LANES, len(batch) - start)
                _load_input(net, samples, batch[start:], count, work, saved)
                forward(net, weights, work, saved, argmax, True)
                share = 1.0 / len(batch)
                _loss_gradient(
                    net, saved, work, labels, batch[start:], count, target, known, weight, share, step_losses
                )
                _backward(net, weights, count, work, saved, argmax, sums)
            add_gradient(net, sums, gradient)
            sums[:] = 0.0
            for index in range(net.num_parameters):
                weights[index] -= np.float32(lr) * gradient[index]
            for loss in range(2):
                losses[loss] += step_losses[loss] * len(batch) / (len(order) * len(orders))


@compiled
def clipped_gradient(net, weights, samples, labels, clip_norm, gradient):
    """Add Σ_b clip(∇f_b) of the cross-entropy, each clipped to norm `clip_norm`; return Σ_b f_b.

    Norms of dense layers are ‖output gradient‖‖input‖. Per-sample gradients of blocks are as small as the kernels, and
    are stored for one group at a time.
    """
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    saved, argmax = np.empty(net.saved, dtype=np.float32), np.empty(net.argmax, dtype=np.uint8)
    per_sample = np.empty(LANES * net.sums if len(net.blocks) > 0 else 0, dtype=np.float32)
    squared, losses = np.empty(LANES, dtype=np.float32), np.zeros(2, dtype=np.float64)
    zeros, indices = np.zeros((net.num_classes, net.num_classes), dtype=np.float32), np.arange(len(samples))
    arrange_weights(net, weights, work)
    for start in range(0, len(samples), LANES):
        count = min(LANES, len(samples) - start)
        _load_input(net, samples, indices[start:], count, work, saved)
        forward(net, weights, work, saved, argmax, True)
        _loss_gradient(net, saved, work, labels, indices[start:], count, zeros, zeros[0], 0.0, 1.0, losses)
        backpropagate_layers(net, weights, work, saved)
        per_sample[:] = 0.0
        add_block_gradients(net, count, work, saved, argmax, per_sample, net.sums)
        squared[:] = 0.0
        _add_norms_of_layers(net, work, saved, squared)
        _add_norms_of_blocks(net, count, per_sample, squared)
        for lane in range(LANES):
            norm = np.sqrt(squared[lane])
            squared[lane] = clip_norm / norm if norm > clip_norm else 1.0
        _scale_output_gradients(net, work, squared)
        add_layer_gradients(net, work, saved, sums)
        _add_scaled_blocks(net, count, per_sample, squared, sums)
    add_gradient(net, sums, gradient)
    return losses[0]


@compiled
def _add_norms_of_layers(net, work, saved, squared):
    """Add the squared norms of the dense layers' per-sample gradients, `[lane]`."""
    squared_gradient, squared_input = np.empty(LANES, dtype=np.float32), np.empty(LANES, dtype=np.float32)
    for number in range(len(net.layers)):
        layer = net.layers[number]
        squared_gradient[:] = 0.0
        squared_input[:] = (
            1.0 if layer[BIAS] < net.num_parameters else 0.0
        )  # the bias is the weight of an input that is always 1
        for index in range(layer[NUM_OUTPUTS]):
            for lane in range(LANES):
                squared_gradient[lane] += work[layer[LAYER_OUTPUT_GRADIENT] + index * LANES + lane] ** 2
        for index in range(layer[NUM_INPUTS]):
            for lane in range(LANES):
                squared_input[lane] += saved[layer[LAYER_INPUT] + index * LANES + lane] ** 2
        for lane in range(LANES):
            squared[lane] += squared_gradient[lane] * squared_input[lane]


@compiled
def _add_norms_of_blocks(net, count, per_sample, squared):
    """Add the squared norms of the blocks' per-sample gradients, `[lane]`."""
    for number in range(len(net.blocks)):
        block = net.blocks[number]
        has_bias, channels = block[BIAS] < net.num_parameters, block[CHANNELS_OUT]
        terms = block[KERNEL_WIDTH] * block[CHANNELS_IN]
        if number == 0:
            numbers = channels * terms * block[KERNEL_HEIGHT]
            for index in range(numbers):
                for lane in range(LANES):
                    squared[lane] += per_sample[block[WEIGHT_GRADIENT] + index * LANES + lane] ** 2
            for index in range(channels if has_bias else 0):
                for lane in range(LANES):
                    squared[lane] += per_sample[block[BIAS_GRADIENT] + index * LANES + lane] ** 2
            continue
        for lane in range(count):
            start, total = lane * net.sums, np.float32(0.0)
            for row in range(channels * block[KERNEL_HEIGHT]):
                first = start + block[WEIGHT_GRADIENT] + row * block[KERNEL_VECTORS] * LANES
                for index in range(first, first + terms):
                    total += per_sample[index] ** 2
            for index in range(channels if has_bias else 0):
                total += per_sample[start + block[BIAS_GRADIENT] + index] ** 2
            squared[lane] += total


@compiled
def _scale_output_gradients(net, work, factors):
    """Multiply the dense layers' output gradients by the samples' clip factors `[lane]`."""
    for number in range(len(net.layers)):
        layer = net.layers[number]
        for index in range(layer[NUM_OUTPUTS]):
            for lane in range(LANES):
                work[layer[LAYER_OUTPUT_GRADIENT] + index * LANES + lane] *= factors[lane]


@compiled
def _add_scaled_blocks(net, count, per_sample, factors, sums):
    """Add the blocks' per-sample gradients, weighted by the samples' clip factors `[lane]`."""
    for number in range(len(net.blocks)):
        block = net.blocks[number]
        channels = block[CHANNELS_OUT]
        if number == 0:
            terms = channels * block[KERNEL_WIDTH] * block[CHANNELS_IN] * block[KERNEL_HEIGHT]
            for begin, size in ((block[WEIGHT_GRADIENT], terms), (block[BIAS_GRADIENT], channels)):
                for index in range(begin, begin + size * LANES, LANES):
                    for lane in range(LANES):
                        sums[index + lane] += factors[lane] * per_sample[index + lane]
            continue
        numbers = channels * block[KERNEL_HEIGHT] * block[KERNEL_VECTORS] * LANES
        for begin, size in ((block[WEIGHT_GRADIENT], numbers), (block[BIAS_GRADIENT], channels)):
            for lane in range(count):
                for index in range(begin, begin + size):
                    sums[index] += factors[lane] * per_sample[lane * net.sums + index]


@compiled
def mixed_steps(
    net, weights, samples, labels, public, target, known, own, shared, moves, factors, lr, velocity, losses
):
    """Steps on batches of own samples `own` `[step, own]` and public samples `shared` `[step, public]`.

    `factors` are the weights of the two losses, the momentum, the norm that a gradient is clipped to, the weight decay,
    and Nesterov's momentum if it is used, else 0. `moves` are offsets `[step, own + public, 2]`, the most to subtract
    from them, and the shape of an image; without offsets none is shifted. `velocity` `[parameter]` continues that of
    earlier steps. Adds the mean losses.
    """
    offsets, most, image = moves
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    saved, argmax = np.empty(net.saved, dtype=np.float32), np.empty(net.argmax, dtype=np.uint8)
    gradient = np.empty(len(weights), dtype=np.float32)
    rows, all_lanes = np.empty((LANES, samples.shape[1]), dtype=np.float32), np.arange(LANES)
    num_own, num_all = own.shape[1], own.shape[1] + shared.shape[1]
    for step in range(len(lr)):
        arrange_weights(net, weights, work)
        gradient[:] = 0.0
        for start in range(0, num_all, LANES):
            count = min(LANES, num_all - start)
            for lane in range(count):
                number = start + lane
                source = samples[own[step, number]] if number < num_own else public[shared[step, number - num_own]]
                if len(offsets) > 0:
                    _shift(source, image, offsets[step, number, 0] - most, offsets[step, number, 1] - most, rows[lane])
                else:
                    rows[lane] = source
            _load_input(net, rows, all_lanes, count, work, saved)
            forward(net, weights, work, saved, argmax, True)
            _mixed_loss_gradient(
                net, saved, work, labels, own[step], shared[step], start, target, known, factors, losses, len(lr)
            )
            _backward(net, weights, count, work, saved, argmax, sums)
        add_gradient(net, sums, gradient)
        sums[:] = 0.0
        scale = _clip_factor(gradient[: net.num_parameters], factors[3])
        for index in range(net.num_parameters):
            decayed = scale * gradient[index] + np.float32(factors[4]) * weights[index]
            velocity[index] = np.float32(factors[2]) * velocity[index] + decayed
            change = velocity[index] if factors[5] == 0.0 else decayed + np.float32(factors[5]) * velocity[index]
            weights[index] -= np.float32(lr[step]) * change


@compiled
def _shift(source, image, down, right, out):
    """Shift an image: (row, column) is the pixel at (row + down, column + right), or the nearest pixel of the edge."""
    channels, height, width = image
    for channel in range(channels):
        for row in range(height):
            start = (channel * height + min(max(row + down, 0), height - 1)) * width
            target = (channel * height + row) * width
            for column in range(width):
                out[target + column] = source[start + min(max(column + right, 0), width - 1)]


@compiled
def _clip_factor(gradient, clip_norm):
    """The factor that clips a gradient to norm `clip_norm`."""
    total = 0.0
    for index in range(len(gradient)):
        total += np.float64(gradient[index]) ** 2
    norm = np.sqrt(total)
    return np.float32(clip_norm / norm) if norm > clip_norm else np.float32(1.0)


@compiled
def _mixed_loss_gradient(net, saved, work, labels, own, shared, first, target, known, factors, losses, num_steps):
    """The gradient of a step's loss for the logits of the group that begins at sample `first`; own samples lead."""
    start, prediction = net.layers[-1, LAYER_OUTPUT_GRADIENT], np.empty(net.num_classes, dtype=np.float64)
    for lane in range(LANES):
        number = first + lane
        if number >= len(own) + len(shared):
            for klass in range(net.num_classes):
                work[start + klass * LANES + lane] = 0.0
            continue
        log_total = _probabilities(saved, net.logits, lane, prediction)
        if number < len(own):
            label, share = labels[own[number]], factors[0] / len(own)
            loss = log_total - np.float64(saved[net.logits + label * LANES + lane])
            losses[0] += loss / (len(own) * num_steps)
            for klass in range(net.num_classes):
                work[start + klass * LANES + lane] = share * (prediction[klass] - (1.0 if klass == label else 0.0))
        else:
            row = shared[number - len(own)]
            share, total, loss = factors[1] * known[row] / len(shared), 0.0, 0.0
            for klass in range(net.num_classes):
                probability = np.float64(target[row, klass])
                total += probability
                loss += probability * (log_total - np.float64(saved[net.logits + klass * LANES + lane]))
            losses[1] += known[row] * loss / (len(shared) * num_steps)
            for klass in range(net.num_classes):
                work[start + klass * LANES + lane] = share * (total * prediction[klass] - target[row, klass])
