"""Audit a run: how much of what the certificate allows does an attacker really see?

Run it with `python examples/audit_a_run.py [ROUNDS [FIELD=VALUE ...]]`. It trains `quick` (20 devices × 300 digits of
MNIST, whole-device ε = 8) twice: with the guarantee that holds for whole devices, and with the paper's Lemma 1; then
attacks device 0 of each run with neighbouring data. 35 s on two cores, once kernels are compiled; records lie under
runs/.
"""

import sys

import airdistill as ad

ATTACKS = ad.AuditOptions(candidates=6, transcripts=5, parts=("exact",))
PROMISES = {
    "whole device, the fleet's own noise": [],
    "one record by Lemma 1, the receiver's noise": [
        "privacy.sensitivity=paper",
        "privacy.trust=receiver_noise",
        "privacy.epsilon=0.1",
    ],
}


def main(rounds: int, changes: list[str]) -> None:
    for promise, terms in PROMISES.items():
        record = ad.run(ad.load("quick", [*terms, *changes]), "ota_fd", rounds)
        before = ad.certify(record.folder).verdict_in_words
        audit = ad.audit_run(record.folder, ATTACKS)
        certified = f"ε {audit.epsilon:.3g} at δ = {audit.delta:g} after {audit.num_rounds} rounds"
        print(f"Promised: {promise}. Device {audit.device} is certified {certified}.")
        print(f"  certificate before the audit: {before}")
        for pair in audit.exact.pairs:
            note = "" if pair.compared else "; nothing was promised against that"
            print(f"  measured: ε ≥ {pair.epsilon(audit.delta)[-1]:.3g} with {pair.description}{note}")
        for violation in audit.violations:
            print(f"  violated: {violation}")
        print(f"  certificate after it: {ad.certify(record.folder).verdict_in_words}", flush=True)
    tried = f"{ATTACKS.transcripts} transcripts, with the worst neighbour of {ATTACKS.candidates} records and 2 devices"
    print(f"Each bound is an estimate, the least of {tried}.")
    print("An attack shows what leaks at least, never that no more does.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16, sys.argv[2:])
