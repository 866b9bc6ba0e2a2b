"""Counted noise against a server with several antennas, which may combine the received signals in any way.

In one slot the antennas receive Y = Σ_j h_j x_j + n: N complex numbers, or 2N real ones. A unit of device i's weighted
vector moves Y by e_i = g_i h_i, with gain g_i. Each device's noise adds |P2_j|² along h_j P2_j, and along j h_j P2_j
too if it has two axes; the receiver adds σ² on each axis. All noise is Gaussian, and so the best attack sees a shift of
Mahalanobis length √(e_i^T Σ^{-1} e_i). The counted noise, in units of the estimate, is

    c_i = 1/(e_i^T Σ^{-1} e_i) = min over attacks a, a^T e_i = 1, of a^T Σ a,

where Σ contains the trusted noise only. The combiner that the server declares is one such attack a, and so c is at most
the noise of its scalar output. Noise on one axis spans a real line, and all lines aligned to one combiner lie in the
2N − 1 dimensions in which Im(f^H Y) = 0: N antennas null the noise of 2N − 2 other devices. Noise on two axes spans a
complex line: N antennas null the noise of N − 1 other devices. In a fleet of no more devices than that, only its own
noise and the receiver's noise protect a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray

# Relative to the strongest direction's variance. A variance below _NOTHING is rounding error, not noise. It is replaced
# by _TRACE: 1e-8 of a shift in such a direction then costs too much, and the rounding error of a shift costs nothing.
_NOTHING, _TRACE = 1e-12, 1e-20
# Relative to the strongest variance: less noise along a shift is no protection and is counted as zero.
_LEAST_COUNTED = 1e-9
_ALIGNED = 1e-9  # relative: largest deviation of one-axis noise from the axis of its signal


@dataclass(frozen=True)
class ReceivedSignal:
    """The signal that the antennas receive in one round.

    `channel` h `[device, antenna]`; `unit_gain` g `[device, row]`, the transmit gain of one unit of a device's vector
    in the estimate, P1√K/w, zero if the row is not sent; `noise_gain` P2 `[device, row]`, on one axis or two;
    `receiver_var` σ² of an antenna on each axis, on both axes or on the real one alone.
    """

    channel: ComplexArray
    unit_gain: ComplexArray
    noise_gain: ComplexArray
    receiver_var: float
    noise_axes: int = 1
    receiver_on_both_axes: bool = True

    def counted_by_trust(self) -> dict[str, FloatArray]:
        """c under every trust model, `[device, row]`: zero for an unprotected row, infinite for one not sent."""
        own = self._own()
        return {
            "receiver_noise": self._together(own, self.receiver_var),
            "fleet_noise": self._together(own, 0.0),
            "own_noise": own,
        }

    def attack(self, device: int, trust: str) -> ComplexArray:
        """a of the best attack on a device, `[row, antenna]`: Re(a^H Y) is its vector plus trusted noise of variance c.

        Zero if nothing was sent. If some direction has no noise, the attack is not unique.
        """
        return np.stack([self._attack(row, device, trust) for row in range(self.unit_gain.shape[1])])

    def _attack(self, row: int, device: int, trust: str) -> ComplexArray:
        num_antennas = self.channel.shape[1]
        shift = _real(self.channel * self.unit_gain[:, row, None])[device]
        if not shift.any():
            return np.zeros(num_antennas, dtype=np.complex128)
        if trust == "own_noise":
            pointing = shift
        else:
            receiver_var = self.receiver_var if trust == "receiver_noise" else 0.0
            values, directions = np.linalg.eigh(self.covariance(row, receiver_var))
            values = np.where(values > _NOTHING * values[-1], values, _TRACE * values[-1])
            pointing = directions @ ((shift @ directions) / values)
        pointing = pointing / (pointing @ shift)
        return np.asarray(pointing[:num_antennas] + 1j * pointing[num_antennas:])

    def _own(self) -> FloatArray:
        """|P2|²/|g|²: a device's own noise arrives along the same line as its signal, and no combiner separates them.

        Noise on one axis counts only if its phase agrees with that of the signal.
        """
        signal, noise = np.abs(self.unit_gain), np.abs(self.noise_gain)
        sent = signal > 0
        counted = np.divide(noise**2, signal**2, out=np.full(signal.shape, np.inf), where=sent)
        if self.noise_axes == 2:
            return np.asarray(counted)
        off = np.abs((self.noise_gain * self.unit_gain.conj()).imag) > _ALIGNED * noise * signal
        return np.where(sent & off, 0.0, counted)

    def _together(self, own: FloatArray, receiver_var: float) -> FloatArray:
        rows = [self._row(row, receiver_var) for row in range(own.shape[1])]
        # A device's own noise always counts, even if rounding loses it next to stronger noise.
        return np.maximum(own, np.stack(rows, axis=1))

    def _row(self, row: int, receiver_var: float) -> FloatArray:
        """1/(e^T Σ^{-1} e) of every device, `[device]`."""
        shifts = _real(self.channel * self.unit_gain[:, row, None])
        values, directions = np.linalg.eigh(self.covariance(row, receiver_var))
        strongest = values[-1]
        if not strongest > 0:
            return np.where(shifts.any(axis=1), 0.0, np.inf)
        values = np.where(values > _NOTHING * strongest, values, _TRACE * strongest)
        price = ((shifts @ directions) ** 2 / values).sum(axis=1)
        counted = np.divide(1.0, price, out=np.full(len(price), np.inf), where=price > 0)
        covered = price * _LEAST_COUNTED * strongest <= (shifts**2).sum(axis=1)
        return np.where(covered, counted, 0.0)

    def covariance(self, row: int, receiver_var: float) -> FloatArray:
        """Σ of a slot, `[axis, axis]`: the real axes of all antennas, then the imaginary axes."""
        sent = self.channel * self.noise_gain[:, row, None]
        lines = _real(sent) if self.noise_axes == 1 else np.concatenate([_real(sent), _real(1j * sent)])
        num_antennas = self.channel.shape[1]
        axes = np.ones(2 * num_antennas)
        if not self.receiver_on_both_axes:
            axes[num_antennas:] = 0.0
        return np.asarray(lines.T @ lines + receiver_var * np.diag(axes))


def _real(vectors: ComplexArray) -> FloatArray:
    """Complex `[device, antenna]` as real `[device, axis]`."""
    return np.concatenate([vectors.real, vectors.imag], axis=1)
