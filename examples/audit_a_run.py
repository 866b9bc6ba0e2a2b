"""Audit a run: how much of the ε that the certificate allows can an attacker measure?

Run it with `python examples/audit_a_run.py [ROUNDS [FIELD=VALUE ...]]`. It trains `quick` (20 devices × 300 digits of
MNIST, whole-device ε = 8) twice: with a guarantee for whole devices, which holds, and with the paper's Lemma 1, which
does not. Then it attacks device 0 of each run with neighbouring data. It takes 35 s on two cores, once kernels are
compiled, and stores the records under runs/.
"""

import sys

import airdistill as ad

ATTACKS = ad.AuditOptions(candidates=6, transcripts=5, parts=("exact",))
GUARANTEES = {
    "whole device, the fleet's own noise": [],
    "one record by Lemma 1, the receiver's noise": [
        "privacy.sensitivity=paper",
        "privacy.trust=receiver_noise",
        "privacy.epsilon=0.1",
    ],
}


def main(rounds: int, changes: list[str]) -> None:
    for guarantee, terms in GUARANTEES.items():
        record = ad.run(ad.load("quick", [*terms, *changes]), "ota_fd", rounds)
        before = ad.certify(record.folder).verdict_in_words
        audit = ad.audit_run(record.folder, ATTACKS)
        certified = f"ε {audit.epsilon:.3g} at δ = {audit.delta:g} after {audit.num_rounds} rounds"
        print(f"Guarantee: {guarantee}. Device {audit.device} is certified {certified}.")
        print(f"  certificate before the audit: {before}")
        for pair in audit.exact.pairs:
            note = "" if pair.compared else "; the guarantee does not cover such a pair"
            print(f"  measured: ε ≥ {pair.epsilon(audit.delta)[-1]:.3g} with {pair.description}{note}")
        for violation in audit.violations:
            print(f"  violated: {violation}")
        print(f"  certificate after the audit: {ad.certify(record.folder).verdict_in_words}", flush=True)
    tried = f"{ATTACKS.transcripts} transcripts, with the worst neighbour of {ATTACKS.candidates} records and 2 devices"
    print(f"Each bound is an estimate, the smallest of {tried}.")
    print("An attack gives a lower bound on the leakage. It cannot prove that no more leaks.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16, sys.argv[2:])
