from typing_extensions import disjoint_base

from seglog._kernels.appended_file import AppendedFile
from seglog._kernels.write_gate import ChangeGate

@disjoint_base
class JournalEnd(ChangeGate):
    _file: AppendedFile
    journal_id: int
    _synced_to: int
    _quiet_to: int
    _waits: bool
    def sync(self) -> int: ...
    def await_number(self, number: int) -> None: ...
