"""What hides a device from a server with several antennas, which may combine what they hear as it likes.

In one slot the antennas hear Y = Σ_j h_j x_j + n, N complex numbers, or 2N real ones. A unit of device i's weighted
vector moves them by e_i = g_i h_i, g_i its gain; each device's noise adds |P2_j|² along h_j P2_j, and along j h_j P2_j
too where it has two axes; the receiver adds σ² on each axis. All of it is Gaussian, so that the best attack there is
sees a shift of Mahalanobis length √(e_i^T Σ^{-1} e_i), and what is counted in units of the estimate is

    c_i = 1/(e_i^T Σ^{-1} e_i) = min over attacks a, a^T e_i = 1, of a^T Σ a,

with only that part of Σ that is trusted. The combiner that the server says it uses is one such a: c is never more than
what its scalar has. Noise on one axis is a line, and all lines that are aligned to one combiner lie in the 2N − 1
dimensions in which Im(f^H Y) = 0: N antennas null the noise of 2N − 2 others. Noise on two axes is a complex line, and
N antennas null that of N − 1 others. With no more devices only its own noise and the receiver's hide one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airdistill.arrays import ComplexArray, FloatArray

# Relative to the strongest direction's variance: below _NOTHING rounding is all there is, and no noise. What of a shift
# points that way by rounding alone must cost nothing: with _TRACE in such a direction, 1e-8 of a shift is too much.
_NOTHING, _TRACE = 1e-12, 1e-20
# Of the strongest variance along a shift: less than that is no protection, and counted as none.
_LEAST_COUNTED = 1e-9
_ALIGNED = 1e-9  # relative: how far noise on one axis may point from the signal that it hides


@dataclass(frozen=True)
class ReceivedSignal:
    """One round as the antennas hear it.

    `channel` h `[device, antenna]`; `unit_gain` g `[device, row]`, with which a unit of what the estimate holds of a
    device's vector is sent, P1√K/w, zero where nothing is; `noise_gain` P2 `[device, row]`, on one axis or two;
    `receiver_var` σ² of an antenna on each axis, on both of them or on the real one alone.
    """

    channel: ComplexArray
    unit_gain: ComplexArray
    noise_gain: ComplexArray
    receiver_var: float
    noise_axes: int = 1
    receiver_on_both_axes: bool = True

    def counted_by_trust(self) -> dict[str, FloatArray]:
        """c under every trust model, `[device, row]`: zero where nothing hides a row, infinite where none was sent."""
        own = self._own()
        return {
            "receiver_noise": self._together(own, self.receiver_var),
            "fleet_noise": self._together(own, 0.0),
            "own_noise": own,
        }

    def attack(self, device: int, trust: str) -> ComplexArray:
        """a of the best attack on a device, `[row, antenna]`: Re(a^H Y) holds its vector once, and noise c of trust.

        Zero where nothing was sent. With no noise along a direction any multiple of it would do as well.
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
        """|P2|²/|g|²: along the same line as the signal at every antenna, so that no combining tells them apart.

        Only where it is on the signal's own axis: the phases must agree if there is one axis alone.
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
        # A device's own noise is always there, even where rounding hides it beside a stronger one.
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
        """Σ of a slot, `[axis, axis]`: of all antennas the real axes, then the imaginary ones."""
        sent = self.channel * self.noise_gain[:, row, None]
        lines = _real(sent) if self.noise_axes == 1 else np.concatenate([_real(sent), _real(1j * sent)])
        num_antennas = self.channel.shape[1]
        axes = np.ones(2 * num_antennas)
        if not self.receiver_on_both_axes:
            axes[num_antennas:] = 0.0
        return np.asarray(lines.T @ lines + receiver_var * np.diag(axes))


def _real(vectors: ComplexArray) -> FloatArray:
    """`[device, antenna]` as `[device, axis]`."""
    return np.concatenate([vectors.real, vectors.imag], axis=1)
