"""What a device computes in one call, compiled by Numba: predictions, knowledge, gradients, passes of steps.

`weights` are a network's parameters as one vector with its padding (`layout_of`); samples are `[sample, feature]`.
Sums over classes and losses are in float64, everything else in float32.
"""

from __future__ import annotations

import numpy as np

from airdistill.learning.fused.backward import (
    add_gradient,
    arrange_weights,
    gradients_of_blocks,
    gradients_of_layers,
    slopes_of_layers,
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
    GRADIENT,
    INPUT,
    KERNEL_HEIGHT,
    KERNEL_VECTORS,
    KERNEL_WIDTH,
    LAYER_INPUT,
    LAYER_SLOPES,
    NUM_INPUTS,
    NUM_OUTPUTS,
)


@compiled
def _take_in(net, samples, chosen, count, work, kept):
    """Samples of these numbers to where the network reads them."""
    if len(net.blocks) > 0:
        gather(samples, chosen, count, work, net.blocks[0, INPUT])
    else:
        gather(samples, chosen, count, kept, net.layers[0, LAYER_INPUT])


@compiled
def predict(net, tilings, weights, values, samples, work, kept, tiles, logits):
    """Logits `[sample, class]` of all samples."""
    chosen = np.arange(len(samples))
    for start in range(0, len(samples), LANES):
        count = min(LANES, len(samples) - start)
        _take_in(net, samples, chosen[start:], count, work, kept)
        evaluate(net, tilings, weights, values, work, kept, tiles)
        for klass in range(net.num_classes):
            for lane in range(count):
                logits[start + lane, klass] = kept[net.logits + klass * LANES + lane]


@compiled
def _probabilities(logits, start, lane, out):
    """The softmax of one lane's logits, and the logarithm of its divisor over e^(largest logit), with that logit."""
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
def class_sums(net, weights, samples, labels, kept, picks, keep, sums):
    """Adds every sample's prediction to its label's row of `sums` `[class, class]`.

    With `keep`, what a backward pass needs stays in `kept` and `picks`, a row for each group; else they have one row.
    """
    work, chosen = np.empty(net.work, dtype=np.float32), np.arange(len(samples))
    prediction = np.empty(net.num_classes, dtype=np.float64)
    for start in range(0, len(samples), LANES):
        count, group = min(LANES, len(samples) - start), start // LANES if keep else 0
        _take_in(net, samples, chosen[start:], count, work, kept[group])
        forward(net, weights, work, kept[group], picks[group], keep)
        for lane in range(count):
            _probabilities(kept[group], net.logits, lane, prediction)
            for klass in range(net.num_classes):
                sums[labels[start + lane], klass] += prediction[klass]


@compiled
def _slopes_of_loss(net, kept, work, labels, chosen, count, target, known, weight, share, losses):
    """Of share · (cross-entropy + weight · ‖prediction − its label's row of the target‖²); adds the two losses."""
    place, prediction = net.layers[-1, LAYER_SLOPES], np.empty(net.num_classes, dtype=np.float64)
    for lane in range(LANES):
        if lane >= count:
            for klass in range(net.num_classes):
                work[place + klass * LANES + lane] = 0.0
            continue
        label = labels[chosen[lane]]
        log_total = _probabilities(kept, net.logits, lane, prediction)
        losses[0] += share * (log_total - np.float64(kept[net.logits + label * LANES + lane]))
        distance = along = 0.0
        factor = weight * known[label]
        if factor != 0.0:
            for klass in range(net.num_classes):
                apart = prediction[klass] - target[label, klass]
                distance += apart * apart
                along += apart * prediction[klass]
            losses[1] += share * known[label] * distance
        for klass in range(net.num_classes):
            slope = prediction[klass] - (1.0 if klass == label else 0.0)
            if factor != 0.0:
                slope += factor * 2.0 * prediction[klass] * (prediction[klass] - target[label, klass] - along)
            work[place + klass * LANES + lane] = share * slope


@compiled
def _backward(net, weights, count, work, kept, picks, sums):
    """Adds the gradients of a group, whose slopes of the logits are in place."""
    slopes_of_layers(net, weights, work, kept)
    gradients_of_layers(net, work, kept, sums)
    gradients_of_blocks(net, count, work, kept, picks, sums, 0)


@compiled
def full_batch_gradient(
    net, weights, samples, labels, target, known, weight, kept, picks, is_kept, chunk, gradient, losses
):
    """Adds the gradient of eq. (1) and its two means; on the forward passes that `class_sums` kept, if it did.

    Sums begin anew with every `chunk` of groups, so that a long one does not swallow small terms.
    """
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    chosen, share = np.arange(len(samples)), 1.0 / len(samples)
    arrange_weights(net, weights, work)
    num_groups = (len(samples) + LANES - 1) // LANES
    for number in range(num_groups):
        start, group = number * LANES, number if is_kept else 0
        count = min(LANES, len(samples) - start)
        if not is_kept or len(net.blocks) > 0:
            _take_in(net, samples, chosen[start:], count, work, kept[group])
        if not is_kept:
            forward(net, weights, work, kept[group], picks[group], True)
        _slopes_of_loss(net, kept[group], work, labels, chosen[start:], count, target, known, weight, share, losses)
        _backward(net, weights, count, work, kept[group], picks[group], sums)
        if (number + 1) % chunk == 0 or number + 1 == num_groups:
            add_gradient(net, sums, gradient)
            sums[:] = 0.0


@compiled
def local_epochs(net, weights, samples, labels, target, known, weight, orders, batch_size, lr, losses):
    """Passes of minibatch steps over the samples in these `orders` `[pass, sample]`; adds the means of the losses."""
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    kept, picks = np.empty(net.kept, dtype=np.float32), np.empty(net.picks, dtype=np.uint8)
    gradient, found = np.empty(len(weights), dtype=np.float32), np.empty(2, dtype=np.float64)
    for number in range(len(orders)):
        order = orders[number]
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            arrange_weights(net, weights, work)
            gradient[:] = 0.0
            found[:] = 0.0
            for start in range(0, len(batch), LANES):
                count = min(LANES, len(batch) - start)
                _take_in(net, samples, batch[start:], count, work, kept)
                forward(net, weights, work, kept, picks, True)
                share = 1.0 / len(batch)
                _slopes_of_loss(net, kept, work, labels, batch[start:], count, target, known, weight, share, found)
                _backward(net, weights, count, work, kept, picks, sums)
            add_gradient(net, sums, gradient)
            sums[:] = 0.0
            for place in range(net.num_parameters):
                weights[place] -= np.float32(lr) * gradient[place]
            for loss in range(2):
                losses[loss] += found[loss] * len(batch) / (len(order) * len(orders))


@compiled
def clipped_gradient(net, weights, samples, labels, clip_norm, gradient):
    """Adds Σ_b clip(∇f_b) of the cross-entropy, each shortened to `clip_norm`; returns Σ_b f_b.

    Norms of dense layers are ‖slopes‖‖input‖; the gradients of blocks, small because kernels are, exist for one group
    at a time.
    """
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    kept, picks = np.empty(net.kept, dtype=np.float32), np.empty(net.picks, dtype=np.uint8)
    own = np.empty(LANES * net.sums if len(net.blocks) > 0 else 0, dtype=np.float32)
    squared, losses = np.empty(LANES, dtype=np.float32), np.zeros(2, dtype=np.float64)
    nothing, chosen = np.zeros((net.num_classes, net.num_classes), dtype=np.float32), np.arange(len(samples))
    arrange_weights(net, weights, work)
    for start in range(0, len(samples), LANES):
        count = min(LANES, len(samples) - start)
        _take_in(net, samples, chosen[start:], count, work, kept)
        forward(net, weights, work, kept, picks, True)
        _slopes_of_loss(net, kept, work, labels, chosen[start:], count, nothing, nothing[0], 0.0, 1.0, losses)
        slopes_of_layers(net, weights, work, kept)
        own[:] = 0.0
        gradients_of_blocks(net, count, work, kept, picks, own, net.sums)
        squared[:] = 0.0
        _add_norms_of_layers(net, work, kept, squared)
        _add_norms_of_blocks(net, count, own, squared)
        for lane in range(LANES):
            norm = np.sqrt(squared[lane])
            squared[lane] = clip_norm / norm if norm > clip_norm else 1.0
        _scale_slopes(net, work, squared)
        gradients_of_layers(net, work, kept, sums)
        _add_scaled_blocks(net, count, own, squared, sums)
    add_gradient(net, sums, gradient)
    return losses[0]


@compiled
def _add_norms_of_layers(net, work, kept, squared):
    of_slopes, of_input = np.empty(LANES, dtype=np.float32), np.empty(LANES, dtype=np.float32)
    for number in range(len(net.layers)):
        layer = net.layers[number]
        of_slopes[:] = 0.0
        of_input[:] = 1.0 if layer[BIAS] < net.num_parameters else 0.0  # a bias is the weight of an input that is 1
        for place in range(layer[NUM_OUTPUTS]):
            for lane in range(LANES):
                of_slopes[lane] += work[layer[LAYER_SLOPES] + place * LANES + lane] ** 2
        for place in range(layer[NUM_INPUTS]):
            for lane in range(LANES):
                of_input[lane] += kept[layer[LAYER_INPUT] + place * LANES + lane] ** 2
        for lane in range(LANES):
            squared[lane] += of_slopes[lane] * of_input[lane]


@compiled
def _add_norms_of_blocks(net, count, own, squared):
    for number in range(len(net.blocks)):
        block = net.blocks[number]
        has_bias, channels = block[BIAS] < net.num_parameters, block[CHANNELS_OUT]
        terms = block[KERNEL_WIDTH] * block[CHANNELS_IN]
        if number == 0:
            numbers = channels * terms * block[KERNEL_HEIGHT]
            for place in range(numbers):
                for lane in range(LANES):
                    squared[lane] += own[block[GRADIENT] + place * LANES + lane] ** 2
            for place in range(channels if has_bias else 0):
                for lane in range(LANES):
                    squared[lane] += own[block[BIAS_GRADIENT] + place * LANES + lane] ** 2
            continue
        for lane in range(count):
            start, total = lane * net.sums, np.float32(0.0)
            for row in range(channels * block[KERNEL_HEIGHT]):
                first = start + block[GRADIENT] + row * block[KERNEL_VECTORS] * LANES
                for place in range(first, first + terms):
                    total += own[place] ** 2
            for place in range(channels if has_bias else 0):
                total += own[start + block[BIAS_GRADIENT] + place] ** 2
            squared[lane] += total


@compiled
def _scale_slopes(net, work, factors):
    for number in range(len(net.layers)):
        layer = net.layers[number]
        for place in range(layer[NUM_OUTPUTS]):
            for lane in range(LANES):
                work[layer[LAYER_SLOPES] + place * LANES + lane] *= factors[lane]


@compiled
def _add_scaled_blocks(net, count, own, factors, sums):
    for number in range(len(net.blocks)):
        block = net.blocks[number]
        channels = block[CHANNELS_OUT]
        if number == 0:
            terms = channels * block[KERNEL_WIDTH] * block[CHANNELS_IN] * block[KERNEL_HEIGHT]
            for begin, size in ((block[GRADIENT], terms), (block[BIAS_GRADIENT], channels)):
                for place in range(begin, begin + size * LANES, LANES):
                    for lane in range(LANES):
                        sums[place + lane] += factors[lane] * own[place + lane]
            continue
        numbers = channels * block[KERNEL_HEIGHT] * block[KERNEL_VECTORS] * LANES
        for begin, size in ((block[GRADIENT], numbers), (block[BIAS_GRADIENT], channels)):
            for lane in range(count):
                for place in range(begin, begin + size):
                    sums[place] += factors[lane] * own[lane * net.sums + place]


@compiled
def mixed_steps(
    net, weights, samples, labels, public, target, known, own, shared, offsets, most, image, factors, lr, losses
):
    """Steps on own samples `own` `[step, own]` and public ones `shared` `[step, public]` side by side.

    `factors` are the two losses' weights, the momentum, and the length that a gradient is shortened to; images of shape
    `image` are moved by `offsets` `[step, own + public, 2]` less `most`, if there are any. Adds the losses' means.
    """
    work, sums = np.empty(net.work, dtype=np.float32), np.zeros(net.sums, dtype=np.float32)
    kept, picks = np.empty(net.kept, dtype=np.float32), np.empty(net.picks, dtype=np.uint8)
    gradient, velocity = np.empty(len(weights), dtype=np.float32), np.zeros(net.num_parameters, dtype=np.float32)
    rows, every = np.empty((LANES, samples.shape[1]), dtype=np.float32), np.arange(LANES)
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
                    _move(source, image, offsets[step, number, 0] - most, offsets[step, number, 1] - most, rows[lane])
                else:
                    rows[lane] = source
            _take_in(net, rows, every, count, work, kept)
            forward(net, weights, work, kept, picks, True)
            _slopes_of_mixed_loss(
                net, kept, work, labels, own[step], shared[step], start, target, known, factors, losses, len(lr)
            )
            _backward(net, weights, count, work, kept, picks, sums)
        add_gradient(net, sums, gradient)
        sums[:] = 0.0
        share = _shortening(gradient[: net.num_parameters], factors[3])
        for place in range(net.num_parameters):
            velocity[place] = np.float32(factors[2]) * velocity[place] + share * gradient[place]
            weights[place] -= np.float32(lr[step]) * velocity[place]


@compiled
def _move(source, image, down, right, out):
    """An image that shows at (row, column) what was at (row + down, column + right), or at the edge nearest to it."""
    channels, height, width = image
    for channel in range(channels):
        for row in range(height):
            start = (channel * height + min(max(row + down, 0), height - 1)) * width
            target = (channel * height + row) * width
            for column in range(width):
                out[target + column] = source[start + min(max(column + right, 0), width - 1)]


@compiled
def _shortening(gradient, longest):
    total = 0.0
    for place in range(len(gradient)):
        total += np.float64(gradient[place]) ** 2
    norm = np.sqrt(total)
    return np.float32(longest / norm) if norm > longest else np.float32(1.0)


@compiled
def _slopes_of_mixed_loss(net, kept, work, labels, own, shared, start, target, known, factors, losses, num_steps):
    """Of a group that begins at sample `start` of a step; own samples come first."""
    place, prediction = net.layers[-1, LAYER_SLOPES], np.empty(net.num_classes, dtype=np.float64)
    for lane in range(LANES):
        number = start + lane
        if number >= len(own) + len(shared):
            for klass in range(net.num_classes):
                work[place + klass * LANES + lane] = 0.0
            continue
        log_total = _probabilities(kept, net.logits, lane, prediction)
        if number < len(own):
            label, share = labels[own[number]], factors[0] / len(own)
            loss = log_total - np.float64(kept[net.logits + label * LANES + lane])
            losses[0] += loss / (len(own) * num_steps)
            for klass in range(net.num_classes):
                work[place + klass * LANES + lane] = share * (prediction[klass] - (1.0 if klass == label else 0.0))
        else:
            row = shared[number - len(own)]
            share, total, loss = factors[1] * known[row] / len(shared), 0.0, 0.0
            for klass in range(net.num_classes):
                wanted = np.float64(target[row, klass])
                total += wanted
                loss += wanted * (log_total - np.float64(kept[net.logits + klass * LANES + lane]))
            losses[1] += known[row] * loss / (len(shared) * num_steps)
            for klass in range(net.num_classes):
                work[place + klass * LANES + lane] = share * (total * prediction[klass] - target[row, klass])
