"""The memory of converted records that wait to be sent to old clients."""
import threading

from seglog.endpoint.converted_records import FirstPieces


def test_what_is_given_back_can_be_taken_again():
    memory = FirstPieces(100)
    assert memory.take(60)
    assert not memory.take(50)
    memory.give_back(60)
    assert memory.take(100)
    assert not memory.take(1)


def test_memory_is_given_back_by_a_thread_that_is_just_taking_some():
    """The garbage collector may run at any step, and give back what it finds."""
    memory = FirstPieces(100)
    assert memory.take(60)

    def collected():
        with memory._lock:
            memory.give_back(60)

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert memory.take(100)
